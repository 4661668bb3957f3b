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

  const replace = (part, fresh) => {
    if (!fresh || isSelected(part)) return;
    const focused = part.contains(document.activeElement) ? document.activeElement : null;
    const scrolled = [...part.querySelectorAll(".results, .zklock-scroll")].map((table) => table.scrollLeft);
    part.replaceChildren(...fresh.childNodes);
    part.querySelectorAll(".results, .zklock-scroll").forEach((table, number) => { table.scrollLeft = scrolled[number] ?? 0; });
    if (focused) counterpart(part, focused)?.focus({ preventScroll: true });
  };

  const start = () => {
    const button = bar.querySelector("button");
    const note = bar.querySelector("span");
    let timer = null;
    let pause = INTERVAL;
    let pending = null;

    const isOn = () => button.getAttribute("aria-pressed") === "true";
    const showNote = (text) => { if (note.textContent !== text) note.textContent = text; };

    const stop = () => {
      clearTimeout(timer);
      pending?.abort();
      pending = null;
    };
    const wait = () => {
      stop();
      if (isOn() && !document.hidden) timer = setTimeout(update, pause);
    };
    const end = (text) => {
      stop();
      button.setAttribute("aria-pressed", "false");
      showNote(text);
    };

    const update = async () => {
      const request = pending = new AbortController();
      const begin = performance.now();
      try {
        const response = await fetch(location.href, { signal: request.signal, credentials: "same-origin" });
        const page = new DOMParser().parseFromString(await response.text(), "text/html");
        if (request !== pending) return;
        if (response.redirected && new URL(response.url).pathname !== location.pathname) return end(bar.dataset.ended);
        if (!response.ok) throw new Error(response.statusText);
        parts().forEach((part) => replace(part, page.getElementById(part.id)));
        updateSummary(page);
        pause = Math.max(INTERVAL, PAUSE_FACTOR * (performance.now() - begin));
        showNote(bar.dataset.on);
      } catch (error) {
        if (request !== pending) return;
        pause = Math.min(2 * pause, MAX_PAUSE);
        showNote(bar.dataset.failed);
      }
      wait();
    };

    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", isOn() ? "false" : "true");
      pause = INTERVAL;
      showNote(isOn() ? bar.dataset.on : bar.dataset.off);
      wait();
    });
    document.addEventListener("visibilitychange", wait);

    bar.hidden = false;
    showNote(bar.dataset.on);
    wait();
  };

  if (bar) start();
}
