import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreMutex;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.retry.RetryOneTime;

/**
 * The contestants of Apache Curator; it answers the commands of clients/locks.py in the same way.
 *
 * <p>The argument is the recipe for exclusive locks: {@code mutex} or {@code semaphore-mutex}. Contenders are threads
 * with one session; processes are programs with a contender each.
 */
public final class LockClient {
    private static final int TURNS = 10;
    private static final int WARM_CYCLES = 2;
    private static final int SESSION_TIMEOUT = 30_000;

    private static boolean mutex;
    private static final List<CuratorFramework> sessions = new ArrayList<>();
    private static List<List<Cycle>> work = List.of();
    private static ExecutorService threads;

    /** Acquires and releases once; with the kind "try" it is refused once. */
    private interface Cycle {
        void run() throws Exception;
    }

    private record Outcome(long cycles, long counted, long last, long end, long longest) {}

    public static void main(String[] arguments) throws Exception {
        mutex = arguments[0].equals("mutex");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split(" ");
            Map<String, String> words = new HashMap<>();
            for (String word : Arrays.copyOfRange(parts, 1, parts.length)) {
                String[] pair = word.split("=", 2);
                words.put(pair[0], pair[1]);
            }
            System.out.println("ok " + answer(parts[0], words));
        }
        System.exit(0);
    }

    private static String answer(String command, Map<String, String> words) throws Exception {
        switch (command) {
            case "open":
                return open(words);
            case "run":
                return run(Double.parseDouble(words.get("start")), Double.parseDouble(words.get("seconds")));
            case "close":
                return close();
            default:
                throw new IllegalArgumentException(command);
        }
    }

    private static CuratorFramework connect(Map<String, String> words) throws Exception {
        String hosts = words.get("host") + ":" + words.get("port");
        CuratorFramework session =
                CuratorFrameworkFactory.newClient(hosts, SESSION_TIMEOUT, SESSION_TIMEOUT, new RetryOneTime(100));
        session.start();
        session.blockUntilConnected(30, TimeUnit.SECONDS);
        sessions.add(session);
        return session;
    }

    private static String open(Map<String, String> words) throws Exception {
        int contenders = Integer.parseInt(words.get("contenders"));
        int first = Integer.parseInt(words.getOrDefault("number", "0"));
        List<String> paths = new ArrayList<>();
        for (int number = 0; number < Integer.parseInt(words.get("keys")); number++) {
            paths.add("/curator/" + words.get("key") + "-" + number);
        }
        if (words.get("kind").equals("try")) {
            CuratorFramework other = connect(words);
            for (String path : paths) {
                exclusive(other, path).acquire();
            }
        }
        CuratorFramework session = connect(words);
        work = new ArrayList<>();
        for (int number = 0; number < contenders; number++) {
            work.add(cycles(session, words, paths, first + number));
        }
        threads = Executors.newFixedThreadPool(contenders);
        together(cycles -> {
            for (int number = 0; number < Math.max(WARM_CYCLES, cycles.size()); number++) {
                cycles.get(number % cycles.size()).run();
            }
            return null;
        });
        return "";
    }

    private static List<Cycle> cycles(
            CuratorFramework session, Map<String, String> words, List<String> paths, int number) throws Exception {
        List<Cycle> cycles = new ArrayList<>();
        String first = paths.get(0);
        switch (words.get("kind")) {
            case "exclusive":
                for (String path : paths) {
                    cycles.add(granted(exclusive(session, path)));
                }
                Collections.shuffle(cycles, new Random(number));
                return cycles;
            case "try":
                InterProcessLock lock = exclusive(session, first);
                return List.of(() -> expect(!lock.acquire(0, TimeUnit.SECONDS)));
            case "mixed":
                InterProcessReadWriteLock pair = new InterProcessReadWriteLock(session, first);
                Cycle read = granted(pair.readLock());
                Cycle write = granted(pair.writeLock());
                for (int turn = 0; turn < TURNS; turn++) {
                    cycles.add((turn + number) % TURNS == 0 ? write : read);
                }
                return cycles;
            case "semaphore":
                int limit = Integer.parseInt(words.get("limit"));
                InterProcessSemaphoreV2 semaphore = new InterProcessSemaphoreV2(session, first, limit);
                return List.of(() -> {
                    Lease lease = semaphore.acquire();
                    semaphore.returnLease(lease);
                });
            case "several":
                return List.of(granted(new InterProcessMultiLock(session, paths)));
            default:
                throw new IllegalArgumentException(words.get("kind"));
        }
    }

    private static InterProcessLock exclusive(CuratorFramework session, String path) {
        return mutex ? new InterProcessMutex(session, path) : new InterProcessSemaphoreMutex(session, path);
    }

    private static Cycle granted(InterProcessLock lock) {
        return () -> {
            lock.acquire();
            lock.release();
        };
    }

    private static void expect(boolean condition) {
        if (!condition) {
            throw new IllegalStateException("a busy lock was granted");
        }
    }

    /** Works from a moment of the clock that all programs of the machine have; moments are in seconds of it. */
    private static String run(double begin, double seconds) throws Exception {
        long cpu = cpu();
        long start = (long) (begin * 1e9);
        long end = start + (long) (seconds * 1e9);
        List<Outcome> outcomes = together(cycles -> repeat(cycles, start, end));
        return String.format(
                Locale.ROOT,
                "cycles=%d counted=%d last=%.9f end=%.9f longest=%.9f cpu=%.9f",
                outcomes.stream().mapToLong(Outcome::cycles).sum(),
                outcomes.stream().mapToLong(Outcome::counted).sum(),
                outcomes.stream().mapToLong(Outcome::last).max().orElseThrow() / 1e9,
                outcomes.stream().mapToLong(Outcome::end).max().orElseThrow() / 1e9,
                outcomes.stream().mapToLong(Outcome::longest).max().orElseThrow() / 1e9,
                (cpu() - cpu) / 1e9);
    }

    private static Outcome repeat(List<Cycle> cycles, long start, long end) throws Exception {
        TimeUnit.NANOSECONDS.sleep(Math.max(0, start - System.nanoTime()));
        long last = start;
        long longest = 0;
        for (int done = 0; ; done++) {
            cycles.get(done % cycles.size()).run();
            long now = System.nanoTime();
            longest = Math.max(longest, now - last);
            if (now > end) {
                return new Outcome(done + 1, done, last, now, longest);
            }
            last = now;
        }
    }

    private interface Part<T> {
        T of(List<Cycle> cycles) throws Exception;
    }

    /** Does a part for each contender, all at the same time, and returns what they return. */
    private static <T> List<T> together(Part<T> part) throws Exception {
        List<Future<T>> futures = new ArrayList<>();
        for (List<Cycle> cycles : work) {
            futures.add(threads.submit(() -> part.of(cycles)));
        }
        List<T> results = new ArrayList<>();
        for (Future<T> future : futures) {
            results.add(future.get());
        }
        return results;
    }

    private static long cpu() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
                .getProcessCpuTime();
    }

    private static String close() {
        threads.shutdown();
        sessions.forEach(CuratorFramework::close);
        sessions.clear();
        return "";
    }
}
