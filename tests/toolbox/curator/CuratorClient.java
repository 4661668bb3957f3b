import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.cache.ChildData;
import org.apache.curator.framework.recipes.cache.CuratorCache;
import org.apache.curator.framework.recipes.cache.CuratorCacheListener;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreMutex;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.retry.RetryNTimes;
import org.apache.zookeeper.AddWatchMode;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.data.Stat;

/**
 * A client of Apache Curator; the program has any number of them and is driven over stdin and stdout.
 *
 * <p>A line in is {@code <client> <command> <arguments>}; a client is made by its first command. Each command is
 * answered by one line, {@code <client> = <answer>} or {@code <client> ! <exception>}. What happens meanwhile is told
 * by lines {@code <client> > <event>}. A client has one thread, so its commands run in their order and the locks that
 * it holds are those of that thread, as Curator wants it; clients do not wait for each other.
 */
public final class CuratorClient {
    private static final Map<String, CuratorClient> CLIENTS = new ConcurrentHashMap<>();

    private final String name;
    private final ExecutorService thread = Executors.newSingleThreadExecutor();
    private final Map<String, InterProcessLock> locks = new HashMap<>();
    private final Map<String, InterProcessReadWriteLock> pairs = new HashMap<>();
    private volatile CuratorFramework curator;

    private CuratorClient(String name) {
        this.name = name;
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            String[] command = Arrays.copyOfRange(words, 1, words.length);
            CuratorClient client = CLIENTS.computeIfAbsent(words[0], CuratorClient::new);
            if (command[0].equals("close")) {
                // Not in the client's thread, which may be waiting for a lock.
                CLIENTS.remove(client.name);
                new Thread(client::close).start();
            } else {
                client.thread.execute(() -> client.answer(command));
            }
        }
        CLIENTS.values().forEach(CuratorClient::close);
    }

    private void close() {
        thread.shutdownNow();
        if (curator != null) {
            curator.close();
        }
        tell(">", "CLOSED");
    }

    private void tell(String kind, Object text) {
        System.out.println(name + " " + kind + " " + text);
    }

    private void answer(String[] command) {
        try {
            tell("=", run(command));
        } catch (Exception error) {
            tell("!", error.getClass().getSimpleName() + " " + error.getMessage());
        }
    }

    private Object run(String[] command) throws Exception {
        String path = command.length > 1 ? command[1] : null;
        Watcher watcher = this::tellEvent;
        switch (command[0]) {
            case "connect":
                return connect(command[1], Integer.parseInt(command[2]));
            case "session":
                return Long.toHexString(curator.getZookeeperClient().getZooKeeper().getSessionId());
            case "create":
                return curator.create().withMode(CreateMode.valueOf(command[3])).forPath(path, command[2].getBytes());
            case "get":
                return new String(curator.getData().forPath(path));
            case "set":
                int version = command.length > 3 ? Integer.parseInt(command[3]) : -1;
                Stat written = curator.setData().withVersion(version).forPath(path, command[2].getBytes());
                return "version " + written.getVersion();
            case "delete":
                return curator.delete().forPath(path);
            case "list":
                return String.join(" ", curator.getChildren().forPath(path).stream().sorted().toList());
            case "owner":
                return Long.toHexString(curator.checkExists().forPath(path).getEphemeralOwner());
            case "watch-data":
                return new String(curator.getData().usingWatcher(watcher).forPath(path));
            case "watch-exists":
                Stat stat = curator.checkExists().usingWatcher(watcher).forPath(path);
                return stat == null ? "absent" : "present";
            case "watch-children":
                return String.join(" ", curator.getChildren().usingWatcher(watcher).forPath(path));
            case "watch-always":
                AddWatchMode mode = AddWatchMode.valueOf(command[2]);
                return curator.watchers().add().withMode(mode).usingWatcher(watcher).forPath(path);
            case "unwatch":
                return curator.watchers().removeAll().forPath(path);
            case "cache":
                return cache(path);
            case "acquire":
                lock(command[1], command[2]).acquire();
                return "acquired";
            case "try":
                long timeout = Long.parseLong(command[3]);
                return lock(command[1], command[2]).acquire(timeout, TimeUnit.MILLISECONDS) ? "acquired" : "busy";
            case "release":
                lock(command[1], command[2]).release();
                return "released";
            case "count":
                return count(lock(command[1], command[2]), command[3], Integer.parseInt(command[4]));
            case "listen":
                ((InterProcessMutex) lock("mutex", path)).makeRevocable(mutex -> tell(">", "REVOKED"));
                return "listening";
            case "revoke":
                Revoker.attemptRevoke(curator, path);
                return "asked";
            default:
                throw new IllegalArgumentException(String.join(" ", command));
        }
    }

    private String connect(String hosts, int sessionTimeout) throws Exception {
        curator = CuratorFrameworkFactory.newClient(hosts, sessionTimeout, Math.max(5000, sessionTimeout / 2), new RetryNTimes(50, 100));
        curator.getConnectionStateListenable().addListener((client, state) -> tell(">", state));
        curator.start();
        if (!curator.blockUntilConnected(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException("no connection to " + hosts);
        }
        return "connected";
    }

    private String cache(String path) {
        CuratorCache cache = CuratorCache.build(curator, path);
        Runnable complete = () -> tell(">", "INITIALIZED");
        cache.listenable()
                .addListener(CuratorCacheListener.builder().forAll(this::tellChange).forInitialized(complete).build());
        cache.start();
        return "started";
    }

    private void tellChange(CuratorCacheListener.Type type, ChildData before, ChildData after) {
        ChildData node = after == null ? before : after;
        tell(">", type + " " + node.getPath() + " " + new String(node.getData()));
    }

    private InterProcessLock lock(String kind, String path) {
        return locks.computeIfAbsent(kind + path, key -> newLock(kind, path));
    }

    private InterProcessLock newLock(String kind, String path) {
        switch (kind) {
            case "mutex":
                return new InterProcessMutex(curator, path);
            case "read":
                return pair(path).readLock();
            case "write":
                return pair(path).writeLock();
            case "multi":
                return new InterProcessMultiLock(curator, List.of(path, path + ",another"));
            case "semaphore-mutex":
                return new InterProcessSemaphoreMutex(curator, path);
            case "semaphore":
                return new OneLease(new InterProcessSemaphoreV2(curator, path, 1));
            default:
                throw new IllegalArgumentException(kind);
        }
    }

    /** A client's read and write lock at a path are of one object, so it can downgrade. */
    private InterProcessReadWriteLock pair(String path) {
        return pairs.computeIfAbsent(path, key -> new InterProcessReadWriteLock(curator, path));
    }

    /** A semaphore of which this client takes one lease at a time. */
    private static final class OneLease implements InterProcessLock {
        private final InterProcessSemaphoreV2 semaphore;
        private Lease lease;

        private OneLease(InterProcessSemaphoreV2 semaphore) {
            this.semaphore = semaphore;
        }

        @Override
        public void acquire() throws Exception {
            lease = semaphore.acquire();
        }

        @Override
        public boolean acquire(long time, TimeUnit unit) throws Exception {
            Lease given = semaphore.acquire(time, unit);
            lease = given == null ? lease : given;
            return given != null;
        }

        @Override
        public void release() {
            semaphore.returnLease(lease);
            lease = null;
        }

        @Override
        public boolean isAcquiredInThisProcess() {
            return lease != null;
        }
    }

    /** Reads a number and writes the next one, so often, with nothing but the lock to keep others out. */
    private String count(InterProcessLock lock, String path, int rounds) throws Exception {
        for (int round = 0; round < rounds; round++) {
            lock.acquire();
            try {
                int value = Integer.parseInt(new String(curator.getData().forPath(path)));
                curator.setData().forPath(path, Integer.toString(value + 1).getBytes());
            } finally {
                lock.release();
            }
        }
        return "counted " + rounds;
    }

    private void tellEvent(WatchedEvent event) {
        if (event.getType() != Watcher.Event.EventType.None) {
            tell(">", event.getType() + " " + event.getPath());
        }
    }
}
