// Elements of the page; texts are texts, never markup.

export function element(name, text = "") {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

// Give an element other children. Those there are turned into them rather than replaced: a click
// that lasts from one state to the next would be lost with its element.
export function renew(parent, parts) {
  parts.forEach((part, i) => {
    const old = parent.childNodes[i];
    if (!old) parent.append(part);
    else if (old.nodeName !== part.nodeName) old.replaceWith(part);
    else become(old, part);
  });
  while (parent.childNodes.length > parts.length) parent.lastChild.remove();
}

function become(old, part) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== part.data) old.data = part.data;
    return;
  }
  for (const name of [...old.getAttributeNames(), ...part.getAttributeNames()]) {
    const value = part.getAttribute(name);
    // The page's policy forbids styles in attributes, not their properties.
    if (name === "style") old.style.cssText = part.style.cssText;
    else if (value === null) old.removeAttribute(name);
    else if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  old.onclick = part.onclick;
  renew(old, [...part.childNodes]);
}

// A row of cells; numbers stand right, elements as they are.
export function row(kind, cells) {
  const made = element("tr");
  for (const value of cells) {
    if (value instanceof HTMLElement) {
      made.append(value);
      continue;
    }
    const cell = element(kind, String(value));
    if (typeof value === "number" || /^([\d,]+|–)$/.test(value)) cell.className = "number";
    made.append(cell);
  }
  return made;
}

// The rows of a table under their heads, which stand as their columns do.
export function table(names, rows) {
  const head = row("th", names);
  [...head.cells].forEach((cell, i) => {
    if (rows.some((each) => each.cells[i].className === "number")) cell.className = "number";
  });
  return [head, ...rows];
}

// Names with their values; values may be elements.
export function figures(pairs) {
  const made = element("table");
  for (const [name, value] of pairs) {
    const line = element("tr");
    const cell = element("td");
    cell.append(value instanceof Node ? value : String(value));
    line.append(element("th", name), cell);
    made.append(line);
  }
  return made;
}
