// Buttons that copy the command line before them.
"use strict";

{
  // Live parts are replaced, so there is one listener, and the buttons are shown by a class of the page.
  document.documentElement.classList.add("zklock-can-copy");

  const copy = async (line) => {
    if (navigator.clipboard) return navigator.clipboard.writeText(line.textContent);
    // Without TLS there is no clipboard: select the line, so that a key copies it.
    document.getSelection().selectAllChildren(line);
    throw new Error("no clipboard");
  };

  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.(".zklock-copy");
    if (!button) return;
    try {
      await copy(button.parentElement.querySelector("code"));
      button.textContent = button.dataset.copied;
    } catch {
      // The line is selected, or the browser refuses.
    }
  });
}
