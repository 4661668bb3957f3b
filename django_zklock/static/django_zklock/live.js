// Updates the live parts of a page: requests the same page again and replaces them.
"use strict";

{
  const INTERVAL = 2000;
  const MAX_PAUSE = 30000;
  // A slow page, for example one that reads every lock, is requested less often: the pause is a multiple of its time.
  const PAUSE_FACTOR = 2;

  const bar = document.getElementById("zklock-refresh");
  const parts = () => [...document.querySelectorAll("[data-zklock-live]")];

  // Update the summary for screen readers. They read every write aloud, so only a change is written.
  const updateSummary = (fresh) => {
    const [old, current] = [document, fresh].map((page) => page.querySelector("[data-zklock-summary]"));
    if (old && current && old.textContent.trim() !== current.textContent.trim()) old.textContent = current.textContent.trim();
  };

  // The user may have selected text to copy it.
  const isSelected = (part) => {
    const selection = document.getSelection();
    return selection && !selection.isCollapsed && selection.containsNode(part, true);
  };

  // Find the focused element in the new content: by its id, or by the address of the link.
  const counterpart = (part, focused) => {
    if (focused.id) return document.getElementById(focused.id);
    const address = focused.getAttribute("href");
    return [...part.querySelectorAll("a[href]")].find((link) => address && link.getAttribute("href") === address);
  };

  // What a button would do is not known to be right any more, and ZooKeeper could not be told.
  const disable = (part) => {
    for (const button of part.querySelectorAll("a.zklock-button")) {
      button.removeAttribute("href");
      button.setAttribute("aria-disabled", "true");
    }
  };

  // Whether nothing of a page could be read from ZooKeeper.
  const isOutage = (page) => Boolean(page.querySelector("[data-zklock-outage]"));

  // Mark what was read last, instead of throwing it away: it is better than nothing, with its time.
  const markStale = (part) => {
    const read = part.querySelector(".zklock-read");
    if (!read || part.querySelector(".zklock-as-of")) return;
    const note = document.createElement("p");
    note.className = "zklock-as-of";
    note.textContent = bar.dataset.stale.replace("{time}", read.dataset.readAt);
    read.classList.add("zklock-stale");
    read.before(note);
    disable(read);
  };

  // Keep in the new content what was read last from the ensembles that cannot be read now.
  const keepUnread = (part, fresh) => {
    const unread = new Set([...fresh.querySelectorAll("[data-zklock-unread]")].map((alert) => alert.dataset.zklockUnread));
    const last = part.querySelector(".zklock-read");
    if (!unread.size || !last) return;
    const rows = [...last.querySelectorAll("#zklock-list tbody tr")];
    const lost = rows.filter((row) => unread.has(row.dataset.zklockAlias));
    const body = fresh.querySelector("#zklock-list tbody");
    if (body) {
      for (const row of lost) row.classList.add("zklock-stale");
      body.append(...lost);
      return;
    }
    if (rows.length && !lost.length) return;
    const note = part.querySelector(".zklock-as-of");
    fresh.append(...[note, last].filter(Boolean));
    markStale(fresh);
  };

  const replace = (part, fresh) => {
    if (!fresh || isSelected(part)) return;
    keepUnread(part, fresh);
    const focused = part.contains(document.activeElement) ? document.activeElement : null;
    const scrolled = [...part.querySelectorAll(".zklock-scroll")].map((table) => table.scrollLeft);
    part.replaceChildren(...fresh.childNodes);
    part.querySelectorAll(".zklock-scroll").forEach((table, number) => { table.scrollLeft = scrolled[number] ?? 0; });
    if (focused) counterpart(part, focused)?.focus({ preventScroll: true });
  };

  const start = () => {
    const button = bar.querySelector("button");
    const note = bar.querySelector("span");
    let timer = null;
    let pause = INTERVAL;
    let pending = null;
    // "on", "off", or "outage": then the page shows nothing new and only looks whether ZooKeeper is back.
    let state = "on";

    const show = (next, text) => {
      state = next;
      button.setAttribute("aria-pressed", String(next === "on"));
      bar.classList.toggle("zklock-outage", next === "outage");
      if (note.textContent !== text) note.textContent = text;
    };

    const stop = () => {
      clearTimeout(timer);
      pending?.abort();
      pending = null;
    };
    const wait = () => {
      stop();
      if (state !== "off" && !document.hidden) timer = setTimeout(update, pause);
    };
    const outage = (text) => {
      pause = Math.min(2 * pause, MAX_PAUSE);
      parts().forEach(markStale);
      show("outage", text);
    };

    const update = async () => {
      const request = pending = new AbortController();
      const begin = performance.now();
      try {
        // By this header the site may answer with what it has read for another tab since then.
        const seen = document.querySelector("[data-zklock-moment]");
        const response = await fetch(location.href, {
          signal: request.signal, credentials: "same-origin",
          headers: seen ? { "X-Zklock-Live": seen.dataset.zklockMoment } : {},
        });
        const page = new DOMParser().parseFromString(await response.text(), "text/html");
        if (request !== pending) return;
        if (response.redirected && new URL(response.url).pathname !== location.pathname) {
          stop();
          return show("off", bar.dataset.ended);
        }
        if (!response.ok) throw new Error(response.statusText);
        const isAway = isOutage(page);
        parts().forEach((part) => replace(part, page.getElementById(part.id)));
        updateSummary(page);
        if (isAway) {
          outage(bar.dataset.outage);
        } else {
          if (!document.querySelector("[data-zklock-unread]")) document.dispatchEvent(new Event("zklock:read"));
          pause = Math.max(INTERVAL, PAUSE_FACTOR * (performance.now() - begin));
          show("on", bar.dataset.on);
        }
      } catch (error) {
        if (request !== pending) return;
        outage(bar.dataset.failed);
      }
      wait();
    };

    button.addEventListener("click", () => {
      pause = INTERVAL;
      if (state === "outage") {
        stop();
        update();
        return;
      }
      if (state === "on") show("off", bar.dataset.off);
      else show("on", bar.dataset.on);
      wait();
    });
    document.addEventListener("visibilitychange", wait);

    bar.hidden = false;
    if (isOutage(document)) show("outage", bar.dataset.outage);
    else show("on", bar.dataset.on);
    wait();
  };

  if (bar) start();
}
