// Elements of the page; texts are texts, never markup.

export function element(name, text = "") {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
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
