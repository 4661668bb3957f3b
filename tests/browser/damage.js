// Return where the layout is broken, and whether a script from a text has run, as a list of sentences.
() => {
  const found = [];
  if (window.attacked) found.push("a script has run");
  const page = document.documentElement;
  if (page.scrollWidth > page.clientWidth) {
    const wide = [...document.body.querySelectorAll("*")].filter((each) => each.getBoundingClientRect().right > page.clientWidth);
    const name = wide.at(-1)?.outerHTML.slice(0, 120);
    found.push(`the page is ${page.scrollWidth} wide, the window ${page.clientWidth}: ${name}`);
  }
  // What of a text is to be seen: elements around it may cut it.
  const texts = (cell) => {
    const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    const boxes = [];
    while (walker.nextNode()) {
      const range = document.createRange();
      range.selectNodeContents(walker.currentNode);
      let { left, right, width } = range.getBoundingClientRect();
      for (let each = walker.currentNode.parentElement; each !== cell; each = each.parentElement) {
        if (getComputedStyle(each).overflowX === "visible") continue;
        const frame = each.getBoundingClientRect();
        [left, right] = [Math.max(left, frame.left), Math.min(right, frame.right)];
      }
      if (width) boxes.push({ left, right });
    }
    return boxes;
  };
  // A table is as wide as its frame: nothing has to be scrolled to.
  for (const frame of document.querySelectorAll(".results, .zklock-scroll")) {
    if (frame.scrollWidth > frame.clientWidth + 1) found.push(`cut: ${frame.scrollWidth} of ${frame.clientWidth}: ${frame.outerHTML.slice(0, 120)}`);
  }
  for (const cell of document.querySelectorAll("#content td, #content th, #content dd, #content li")) {
    const box = cell.getBoundingClientRect();
    if (texts(cell).some((text) => text.right > box.right + 1 || text.left < box.left - 1)) found.push(`out of its cell: ${cell.outerHTML.slice(0, 120)}`);
  }
  return found;
}
