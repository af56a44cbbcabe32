"use strict";
const table = document.getElementById("board"), body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
const rows = [...body.rows].filter(row => row.className !== "none"), none = body.querySelector(".none");
document.querySelectorAll(".js").forEach(part => part.hidden = false);
document.getElementById("facets")?.toggleAttribute("open", innerWidth > 640);

function sortBy(column) {
  const head = heads[column], first = head.dataset.first, text = "text" in head.dataset;
  const other = first === "ascending" ? "descending" : "ascending";
  const order = head.getAttribute("aria-sort") === first ? other : first, sign = order === "ascending" ? 1 : -1;
  heads.forEach(one => one.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", order);
  const value = row => row.cells[column].dataset.value;
  rows.sort((a, b) => {
    const x = value(a), y = value(b);
    if (x === "" || y === "") return (x === "") - (y === "");
    return sign * (text ? x.localeCompare(y) : x - y);
  });
  body.append(...rows, none);
}
heads.forEach((head, column) => head.querySelector(".sort").addEventListener("click", () => sortBy(column)));

const filter = document.getElementById("filter"), boxes = [...document.querySelectorAll("[data-facet]")];
function choose() {
  const words = filter.value.toLowerCase(), chosen = {};
  boxes.filter(box => box.checked).forEach(box => (chosen[box.dataset.facet.toLowerCase()] ??= []).push(box.value));
  let shown = 0;
  for (const row of rows) {
    const fits = Object.entries(chosen).every(([name, values]) => values.includes(row.dataset[name]));
    row.hidden = !(fits && `${row.cells[1].dataset.value} ${row.cells[1].dataset.id}`.toLowerCase().includes(words));
    shown += !row.hidden;
  }
  none.hidden = shown > 0;
  document.getElementById("count").textContent = `${shown} of ${rows.length} rows`;
}
filter.addEventListener("input", choose);
boxes.forEach(box => box.addEventListener("change", choose));
document.getElementById("clear").addEventListener("click", () => {
  filter.value = "";
  boxes.forEach(box => box.checked = false);
  choose();
});
choose();

async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // pages from files have no clipboard in some browsers
    const area = document.body.appendChild(Object.assign(document.createElement("textarea"), {value: text}));
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "copied";
}
function copyButton(text) {
  const button = Object.assign(document.createElement("button"), {textContent: "copy command", className: "copy"});
  button.addEventListener("click", () => copy(button, text));
  return button;
}
document.querySelectorAll("#run-table .command").forEach(code => code.after(copyButton(code.textContent)));

const cell = document.getElementById("cell");
body.addEventListener("click", event => {
  const link = event.target.closest("[data-runs]");
  if (!link || !cell.showPopover) return;
  event.preventDefault();
  const found = link.closest("td"), title = document.createElement("b"), value = document.createElement("p");
  title.textContent = `${found.parentElement.cells[1].dataset.value}, ${heads[found.cellIndex].querySelector(".sort").textContent}`;
  value.textContent = `${link.textContent} ${link.title}`;
  cell.replaceChildren(title, value);
  for (const number of link.dataset.runs.split(" ")) {
    const [, protocol, record, command] = document.getElementById(`run-${number}`).cells;
    const line = document.createElement("p"), text = command.querySelector(".command").textContent;
    line.append(protocol.textContent, " ", ...[...record.childNodes].map(node => node.cloneNode(true)), " ", copyButton(text));
    cell.append(line);
  }
  cell.showPopover();
});
