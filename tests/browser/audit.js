// Return the barriers of the page for users with impaired vision, as a list of sentences.
// `root` is the part that is checked; headings and ids are checked in the whole page.
(root) => {
  const found = [];
  const name = (element) => element.outerHTML.slice(0, 120);
  const shown = (element) => element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true });

  // Every control has a name.
  for (const control of root.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary")) {
    const labels = [...(control.labels ?? [])];
    const references = (control.getAttribute("aria-labelledby") ?? "").split(/\s+/).filter(Boolean)
      .map((id) => document.getElementById(id)?.textContent);
    const images = [control, ...labels].flatMap((each) => [...each.querySelectorAll("img")]).map((image) => image.alt);
    const own = control.matches("input[type=submit], input[type=button]") ? control.value : "";
    const texts = [control, ...labels].map((each) => each.textContent);
    const names = [...texts, ...references, ...images, own, control.getAttribute("aria-label"), control.title];
    if (shown(control) && !names.some((text) => text?.trim())) found.push(`no name: ${name(control)}`);
  }

  // Images have an alternative text, which may be empty.
  for (const image of root.querySelectorAll("img:not([alt])")) found.push(`no alt: ${name(image)}`);
  for (const image of root.querySelectorAll("svg")) {
    const hidden = image.closest("[aria-hidden=true]");
    const said = image.getAttribute("aria-label") || image.getAttribute("aria-labelledby") || image.querySelector(":scope > title");
    if (!hidden && !(image.getAttribute("role") === "img" && said)) found.push(`no role or name: ${name(image)}`);
  }

  // Column headers have a scope; Django itself writes row headers without.
  for (const header of root.querySelectorAll("thead th:not([scope])")) found.push(`no scope: ${name(header)}`);

  // Headings skip no level.
  const headings = [...document.querySelectorAll("#content-start h1, #content-start h2, #content-start h3, #content-start h4")].filter(shown);
  headings.forEach((heading, place) => {
    const level = Number(heading.tagName[1]);
    const before = place ? Number(headings[place - 1].tagName[1]) : 0;
    if (level > before + 1) found.push(`heading skips a level: ${name(heading)}`);
  });

  // Ids are unique, and references have a target.
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  ids.filter((id, place) => ids.indexOf(id) !== place).forEach((id) => found.push(`id given twice: ${id}`));
  for (const attribute of ["aria-labelledby", "aria-describedby", "aria-controls", "for"]) {
    for (const element of root.querySelectorAll(`[${attribute}]`)) {
      const missing = element.getAttribute(attribute).split(/\s+/).filter((id) => id && !document.getElementById(id));
      if (missing.length) found.push(`${attribute} refers to nothing: ${name(element)}`);
    }
  }

  // Text has enough contrast (WCAG 2.2, success criterion 1.4.3).
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const paint = (colours) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const colour of colours) {
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
    }
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (pixel) => {
    const [red, green, blue] = pixel.slice(0, 3).map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const behind = (element) => {
    const colours = ["white"];
    const ancestors = [];
    for (let each = element; each; each = each.parentElement) ancestors.unshift(each);
    for (const each of ancestors) colours.push(getComputedStyle(each).backgroundColor);
    return colours;
  };
  for (const element of root.querySelectorAll("*")) {
    const text = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE).map((node) => node.data).join("").trim();
    if (!text || !shown(element) || element.closest("[disabled], title, desc, script, style, .visually-hidden")) continue;
    const style = getComputedStyle(element);
    const background = behind(element);
    const colour = element instanceof SVGElement ? style.fill : style.color;
    const lights = [luminance(paint(background)), luminance(paint([...background, colour]))].sort((one, other) => other - one);
    const ratio = (lights[0] + 0.05) / (lights[1] + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) found.push(`contrast ${ratio.toFixed(2)}: ${name(element)}`);
  }
  return found;
}
