// Draws how many contenders hold and wait, by group of keys, from what the page has read since it was opened.
"use strict";

{
  const SVG = "http://www.w3.org/2000/svg";
  const [WIDTH, HEIGHT] = [200, 28];
  const MAX_SAMPLES = 300;
  const MAX_GROUPS = 4;

  const box = document.getElementById("zklock-contention");
  const samples = [];

  // Add up the locks on the page by group: {"invoice": {holding: 1, waiting: 3}}.
  const count = () => {
    const groups = new Map();
    for (const { dataset } of document.querySelectorAll("[data-zklock-group]")) {
      const sum = groups.get(dataset.zklockGroup) ?? { holding: 0, waiting: 0 };
      sum.holding += Number(dataset.zklockHolding);
      sum.waiting += Number(dataset.zklockWaiting);
      groups.set(dataset.zklockGroup, sum);
    }
    return groups;
  };

  const series = (group, name) => samples.map(({ groups }) => groups.get(group)?.[name] ?? 0);
  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_whole, name) => values[name]);
  const time = (moment) => new Date(moment).toLocaleTimeString(document.documentElement.lang, { hour: "2-digit", minute: "2-digit" });

  // A stepped line through the values over time, from the first sample to the last.
  const steps = (values, top) => {
    const [begin, end] = [samples[0].moment, samples.at(-1).moment];
    const x = (moment) => end === begin ? WIDTH : (moment - begin) / (end - begin) * WIDTH;
    const y = (value) => HEIGHT - 1 - value / top * (HEIGHT - 3);
    const points = values.map((value, number) => `H${x(samples[number].moment).toFixed(1)}V${y(value).toFixed(1)}`);
    return `M0 ${y(values[0]).toFixed(1)}${points.join("")}H${WIDTH}`;
  };

  const path = (name, definition) => {
    const element = document.createElementNS(SVG, "path");
    element.setAttribute("class", name);
    element.setAttribute("d", definition);
    return element;
  };

  const draw = (group, top) => {
    const [waiting, holding] = [series(group, "waiting"), series(group, "holding")];
    const now = ["waiting", "holding"].map((name) => fill(box.dataset[name], { count: { waiting, holding }[name].at(-1) }));
    const peak = fill(box.dataset.peak, { peak: Math.max(...waiting), time: time(samples[0].moment) });
    const figure = document.createElement("figure");
    const caption = figure.appendChild(document.createElement("figcaption"));
    caption.appendChild(document.createElement("bdi")).textContent = group;
    now.forEach((text, number) => {
      const part = caption.appendChild(document.createElement("span"));
      part.className = ["zklock-waiting-now", "zklock-holding-now"][number];
      part.textContent = text;
      part.after(" ");
    });
    const image = figure.appendChild(document.createElementNS(SVG, "svg"));
    image.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    image.setAttribute("preserveAspectRatio", "none");
    image.setAttribute("role", "img");
    image.setAttribute("aria-label", `${group}: ${now.join(", ")}, ${peak}`);
    const line = steps(waiting, top);
    image.append(
      path("zklock-waiting-area", `${line}V${HEIGHT}H0Z`),
      path("zklock-waiting-line", line),
      path("zklock-holding-line", steps(holding, top)),
    );
    figure.title = `${group}: ${peak}`;
    return figure;
  };

  const sample = () => {
    samples.push({ moment: Date.now(), groups: count() });
    if (samples.length > MAX_SAMPLES) samples.shift();
    // Only groups with waiters in this time, the most contended first.
    const peaks = new Map();
    for (const { groups } of samples) {
      for (const [group, { waiting }] of groups) peaks.set(group, Math.max(waiting, peaks.get(group) ?? 0));
    }
    const shown = [...peaks].filter(([, peak]) => peak > 0).sort(([, one], [, other]) => other - one).slice(0, MAX_GROUPS).map(([group]) => group);
    const top = Math.max(1, ...shown.flatMap((group) => [...series(group, "waiting"), ...series(group, "holding")]));
    box.replaceChildren(...shown.map((group) => draw(group, top)));
    box.hidden = samples.length < 2 || !shown.length;
  };

  if (box) {
    sample();
    document.addEventListener("zklock:read", sample);
  }
}
