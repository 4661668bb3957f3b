// Renews what a page shows of live locks, by asking for the same page again. Without this script one reloads it.
"use strict";

{
  const INTERVAL = 2000;
  const LONGEST = 30000;
  // A page that takes long, because it reads all locks, is asked for more rarely: it rests so many times as long.
  const REST = 2;

  const bar = document.getElementById("zklock-refresh");
  const parts = () => [...document.querySelectorAll("[data-zklock-live]")];

  // The part of a page that says in one sentence what there is. Only a change is written: it is read out aloud.
  const summarise = (fresh) => {
    const [old, current] = [document, fresh].map((page) => page.querySelector("[data-zklock-summary]"));
    if (old && current && old.textContent.trim() !== current.textContent.trim()) old.textContent = current.textContent.trim();
  };

  // Somebody may have marked text, to copy it.
  const isMarked = (part) => {
    const marked = document.getSelection();
    return marked && !marked.isCollapsed && marked.containsNode(part, true);
  };

  // What had the focus, in the new content: the same link, or the same id.
  const successor = (part, focused) => {
    if (focused.id) return document.getElementById(focused.id);
    const address = focused.getAttribute("href");
    return [...part.querySelectorAll("a[href]")].find((link) => address && link.getAttribute("href") === address);
  };

  const replace = (part, fresh) => {
    if (!fresh || isMarked(part)) return;
    const focused = part.contains(document.activeElement) ? document.activeElement : null;
    const scrolled = [...part.querySelectorAll(".results, .zklock-scroll")].map((table) => table.scrollLeft);
    part.replaceChildren(...fresh.childNodes);
    part.querySelectorAll(".results, .zklock-scroll").forEach((table, number) => { table.scrollLeft = scrolled[number] ?? 0; });
    if (focused) successor(part, focused)?.focus({ preventScroll: true });
  };

  const start = () => {
    const button = bar.querySelector("button");
    const note = bar.querySelector("span");
    let timer = null;
    let pause = INTERVAL;
    let under = null;

    const isOn = () => button.getAttribute("aria-pressed") === "true";
    const say = (text) => { if (note.textContent !== text) note.textContent = text; };

    const stop = () => {
      clearTimeout(timer);
      under?.abort();
      under = null;
    };
    const wait = () => {
      stop();
      if (isOn() && !document.hidden) timer = setTimeout(renew, pause);
    };
    const end = (text) => {
      stop();
      button.setAttribute("aria-pressed", "false");
      say(text);
    };

    const renew = async () => {
      const request = under = new AbortController();
      const begin = performance.now();
      try {
        const answer = await fetch(location.href, { signal: request.signal, credentials: "same-origin" });
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        if (request !== under) return;
        if (answer.redirected && new URL(answer.url).pathname !== location.pathname) return end(bar.dataset.ended);
        if (!answer.ok) throw new Error(answer.statusText);
        parts().forEach((part) => replace(part, page.getElementById(part.id)));
        summarise(page);
        pause = Math.max(INTERVAL, REST * (performance.now() - begin));
        say(bar.dataset.on);
      } catch (error) {
        if (request !== under) return;
        pause = Math.min(2 * pause, LONGEST);
        say(bar.dataset.failed);
      }
      wait();
    };

    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", isOn() ? "false" : "true");
      pause = INTERVAL;
      say(isOn() ? bar.dataset.on : bar.dataset.off);
      wait();
    });
    document.addEventListener("visibilitychange", wait);

    bar.hidden = false;
    say(bar.dataset.on);
    wait();
  };

  if (bar) start();
}
