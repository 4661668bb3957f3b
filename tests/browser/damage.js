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
  for (const cell of document.querySelectorAll("#content td, #content th, #content dd, #content li")) {
    const box = cell.getBoundingClientRect();
    const range = document.createRange();
    range.selectNodeContents(cell);
    const text = range.getBoundingClientRect();
    if (text.width && (text.right > box.right + 1 || text.left < box.left - 1)) found.push(`out of its cell: ${cell.outerHTML.slice(0, 120)}`);
  }
  return found;
}
