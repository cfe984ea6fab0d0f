// What is wrong with how a page looks, as sentences, and which of its elements are scrolled sideways, with all parts unfolded.
// Sizes are in CSS pixels. Letters in pictures are paths, `smallestDrawn` is the least size of their font.
({ smallest, smallestDrawn }) => {
  const faults = [], scrolled = [];
  document.querySelectorAll("details").forEach((part) => (part.open = true));
  const root = document.documentElement, width = root.clientWidth;
  const told = (text) => text.trim().replace(/\s+/g, " ").slice(0, 60);
  const name = (element) => {
    const section = element.closest("section");
    const where = section && element !== section ? ` in "${told(section.querySelector("h1, h2, h3")?.textContent ?? "")}"` : "";
    const kind = typeof element.className === "string" && element.className ? `.${element.className.split(/\s+/)[0]}` : "";
    const words = element.querySelector("svg") ? "" : ` "${told(element.textContent)}"`;
    return `${element.localName}${kind}${words}${where}`;
  };
  const shown = (element) => element.checkVisibility({ visibilityProperty: true });
  const scrolls = (element) => /auto|scroll/.test(getComputedStyle(element).overflowX);
  const hasArea = ({ width, height }) => width > 0 && height > 0;
  const drawn = ({ width, height }) => width > 0 || height > 0; // a line has no area
  const elements = [...document.body.querySelectorAll("*")];
  const html = elements.filter((element) => !element.closest("svg") && !/^(SCRIPT|STYLE)$/.test(element.tagName));

  // The page is as broad as its window, and nothing sticks out to the left, where nobody can scroll.
  if (root.scrollWidth > width) faults.push(`the page is ${root.scrollWidth} px broad in a window of ${width} px`);
  const outside = new Set();
  for (const element of html.concat([...document.querySelectorAll("svg")])) {
    const box = element.getBoundingClientRect();
    let around = element.parentElement;
    while (around && around !== document.body && !scrolls(around)) around = around.parentElement;
    const out = hasArea(box) && around === document.body && (box.right > width + 0.5 || box.left < -0.5);
    if (out) outside.add(element);
    if (out && !outside.has(element.parentElement))
      faults.push(`sticks out of the page: ${name(element)}, from ${box.left.toFixed(1)} to ${box.right.toFixed(1)} of ${width} px`);
  }

  for (const element of html) {
    const style = getComputedStyle(element);
    const broader = element.scrollWidth > element.clientWidth, higher = element.scrollHeight > element.clientHeight;
    if (style.display !== "inline" && shown(element)) {
      if (broader && scrolls(element)) scrolled.push(element.localName + (element.className ? `.${element.classList[0]}` : ""));
      if ((broader && /hidden|clip/.test(style.overflowX)) || (higher && /hidden|clip/.test(style.overflowY)))
        faults.push(`cut off: ${name(element)}`);
      else if (broader && /^(TABLE|TD|TH|FIGURE|PRE)$/.test(element.tagName)) faults.push(`its content is broader: ${name(element)}`);
    }
  }

  // Parts of the page are beside or below each other.
  const parts = [...document.querySelectorAll("section, h1, dl, p.answer, p.warning")].map((part) => [part, part.getBoundingClientRect()]);
  const overlap = (a, b, least) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > least && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > least;
  for (const [k, [part, box]] of parts.entries())
    for (const [other, place] of parts.slice(k + 1))
      if (!part.contains(other) && hasArea(box) && hasArea(place) && overlap(box, place, 1))
        faults.push(`parts overlap: ${name(part)} and ${name(other)}`);

  // Every text is large enough to be read.
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const small = new Set();
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !html.includes(element) || !shown(element)) continue;
    const size = parseFloat(getComputedStyle(element).fontSize);
    if (size < smallest && !small.has(element)) faults.push(`text of ${size.toFixed(1)} px: ${name(element)}`);
    small.add(element);
  }

  // Pictures: they are there, show more than their ground, and their texts are whole and large enough.
  for (const image of document.querySelectorAll("img"))
    if (!image.complete || !image.naturalWidth || !hasArea(image.getBoundingClientRect()))
      faults.push(`a picture is missing or empty: ${image.alt || told(image.src)}`);
  for (const svg of document.querySelectorAll("svg")) {
    const box = svg.getBoundingClientRect(), title = name(svg.parentElement);
    const marks = [...svg.querySelectorAll("path, use, image, rect, circle, line, polyline, polygon, text")].filter(
      (mark) => !mark.closest("defs, clipPath, symbol") && drawn(mark.getBoundingClientRect()),
    );
    if (!hasArea(box) || marks.length < 2) {
      faults.push(`a picture is empty: ${title}`);
      continue;
    }
    for (const use of svg.querySelectorAll("use")) {
      const target = (use.getAttribute("href") ?? use.getAttribute("xlink:href") ?? "").slice(1);
      if (!document.getElementById(target)) faults.push(`a part #${target} is missing from a picture: ${title}`);
    }
    // Matplotlib: a group text_N for each text, its words as a comment, and letters of 100 units below a group that scales.
    let least = smallestDrawn, fine = "";
    const level = []; // texts that are not rotated, whose boxes have little more than their letters
    for (const group of svg.querySelectorAll('g[id^="text_"]')) {
      const words = [...group.childNodes].find((node) => node.nodeType === Node.COMMENT_NODE)?.data ?? "";
      const place = group.getBoundingClientRect();
      if (!hasArea(place)) continue;
      if (place.left < box.left - 1 || place.right > box.right + 1 || place.top < box.top - 1 || place.bottom > box.bottom + 1)
        faults.push(`text cut off in a picture: "${told(words)}", ${title}`);
      const letters = group.querySelector("use")?.parentElement.getScreenCTM();
      if (letters && Math.abs(letters.b) < 1e-6) level.push([words, place]);
      const size = letters ? 100 * Math.sqrt(Math.abs(letters.a * letters.d - letters.b * letters.c)) : Infinity;
      if (size < least) [least, fine] = [size, words];
    }
    for (const [k, [words, place]] of level.entries())
      for (const [others, box] of level.slice(k + 1))
        if (overlap(place, box, 1)) faults.push(`texts overlap in a picture: "${told(words)}" and "${told(others)}", ${title}`);
    if (fine) faults.push(`text of ${least.toFixed(1)} px in a picture: "${told(fine)}", ${title}`);
  }

  // Nothing is empty: neither sections beside their heading, nor tables, nor a column of them.
  const full = (element) => element.textContent.trim() || element.querySelector("img, svg");
  for (const section of document.querySelectorAll("section"))
    if (![...section.children].some((part) => !/^H\d$/.test(part.tagName) && full(part) && hasArea(part.getBoundingClientRect())))
      faults.push(`a section is empty: ${name(section)}`);
  for (const table of document.querySelectorAll("table")) {
    const rows = [...table.querySelectorAll("tbody tr")].filter((row) => row.textContent.trim());
    if (!rows.length) faults.push(`a table is empty: ${name(table)}`);
    else if (!table.closest("details")) // further rows have the columns of the first ones
      for (const [k, head] of [...table.querySelectorAll("thead th")].entries())
        if (!rows.some((row) => row.cells[k]?.textContent.trim())) faults.push(`a column is empty: ${name(head)}`);
  }
  for (const part of document.querySelectorAll("h1, h2, h3, p, dt, dd, pre, figure, figcaption"))
    if (!full(part)) faults.push(`a ${part.localName} is empty`);

  for (const file of performance.getEntriesByType("resource")) faults.push(`the page wants another file: ${file.name}`);
  const columns = new Set([...document.querySelectorAll("h2")].map((heading) => heading.getBoundingClientRect().left));
  return { faults, scrolled: [...new Set(scrolled)].sort(), columns: columns.size };
}
