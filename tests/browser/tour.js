// One step of a tour with the Tab key: is the tour over, and did the previous element show its focus?
() => {
  const look = (element) => {
    const style = getComputedStyle(element);
    return [style.outline, style.boxShadow, style.border, style.backgroundColor, style.color, style.textDecoration].join();
  };
  const before = window.stop_;
  const unmarked = before && before.look === look(before.element) ? before.element.outerHTML.slice(0, 120) : null;
  const element = document.activeElement;
  const over = element === document.body || element === document.documentElement;
  window.stop_ = over ? null : { element, look: look(element) };
  if (!over) element.dataset.reached = "";
  return { over, unmarked };
}
