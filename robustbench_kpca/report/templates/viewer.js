const content = JSON.parse(document.getElementById("content").textContent), STEP = 60;
const at = id => document.getElementById(id);
const sides = [["model-a", "protocol-a"], ["model-b", "protocol-b"]];
let shown = STEP;

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}
function options(select, names, none) {
  select.replaceChildren(...(none ? [new Option(none, "")] : []), ...names.map(name => new Option(name, name)));
}
const title = record => record.protocol + (record.seed ? `, seed ${record.seed}` : "");
const models = [...new Set(content.records.map(record => record.model))];
const protocols = model => content.records.filter(record => record.model === model).map(title);
const chosen = side => content.records.find(record => record.model === at(sides[side][0]).value && title(record) === at(sides[side][1]).value);
const named = label => label === undefined || label < 0 ? "none" : content.class_names[label] ?? String(label);

function picture(source, caption) {
  const figure = element("figure"), image = element("img"), button = element("button", undefined, "zoom");
  image.src = source; image.alt = caption; image.loading = "lazy"; button.title = "enlarge";
  button.append(image); button.onclick = () => enlarge(figure.parentElement);
  figure.append(button, element("figcaption", caption));
  return figure;
}
function enlarge(pictures) {
  const dialog = at("zoom"), copy = pictures.cloneNode(true);
  for (const button of copy.querySelectorAll("button")) button.replaceWith(...button.childNodes);
  dialog.firstElementChild.replaceWith(copy);
  dialog.showModal();
}
function sentences(row) {
  const lines = [], before = row.clean_prediction;
  lines.push(before === undefined ? `predicted ${named(row.prediction)}` : `predicted ${named(before)} → ${named(row.prediction)}`);
  if (row.state === "lost") lines.push(`broken by ${row.broken_by}`);
  if (row.rank !== undefined) lines.push(`classes ranked above the label: ${row.rank}`);
  if (row.confidence !== undefined) lines.push(`confidence ${row.confidence.toFixed(3)}`);
  if (row.linf !== undefined) lines.push(`L∞ ${(255 * row.linf).toFixed(2)}/255, L2 ${row.l2.toFixed(3)}`);
  if (row.forwards !== undefined) lines.push(`${row.forwards} forward, ${row.backwards} backward passes`);
  return lines;
}
const STATES = {kept: "kept: right", lost: "lost: right before the attack", wrong: "wrong before any attack"};
function side(record, sample, row) {
  const part = element("section");
  part.append(element("h3", `${record.model} · ${title(record)}`));
  if (!row) { part.append(element("p", "not in this record", "soft")); return part; }
  if (row.image) {
    const pictures = element("div", undefined, "pictures");
    pictures.append(picture(sample.clean, "clean"), picture(row.image, "worst found"),
      picture(row.difference, row.magnified ? `change × ${row.magnified}` : "no change"));
    part.append(pictures);
  }
  const state = record.attack || row.state === "kept" ? STATES[row.state] : "wrong";
  part.append(element("p", state, `state ${row.state}`), ...sentences(row).map(line => element("p", line, "soft")));
  return part;
}
function matching() {
  const [a, b] = [chosen(0), chosen(1)], wanted = at("state").value, label = at("label").value, differ = at("differ").checked;
  return content.samples.map((sample, index) => ({sample, rows: [a, b].map(record => record ? record.rows[index] : null)}))
    .filter(({sample, rows}) => {
      if (label !== "" && String(sample.label) !== label) return false;
      if (at("images").checked && !rows.some(row => row && row.image)) return false;
      if (b && differ && !(rows[0] && rows[1] && (rows[0].state === "kept") !== (rows[1].state === "kept"))) return false;
      return wanted === "" || (rows[0] && rows[0].state === wanted);
    });
}
function show() {
  const records = [chosen(0), chosen(1)], found = matching(), list = at("samples");
  list.classList.toggle("two", Boolean(records[1]));
  list.replaceChildren(...found.slice(0, shown).map(({sample, rows}) => {
    const item = element("li"), both = element("div", undefined, "sides");
    item.append(element("h2", `${sample.id} · label ${named(sample.label)}`));
    rows.forEach((row, number) => { if (records[number]) both.append(side(records[number], sample, row)); });
    item.append(both);
    return item;
  }));
  at("count").textContent = found.length ? `${found.length} of ${content.samples.length} samples` : "No sample matches: choose other filters.";
  at("more").hidden = found.length <= shown;
  at("differ").disabled = !records[1];
}
function start() {
  options(at("model-a"), models); options(at("model-b"), models, "none");
  options(at("label"), [...new Set(content.samples.map(sample => sample.label))].sort((x, y) => x - y), "all");
  for (const option of at("label").options) if (option.value !== "") option.textContent = named(Number(option.value));
  sides.forEach(([model, protocol]) => at(model).addEventListener("change", () => {
    const before = at(protocol).value, names = protocols(at(model).value);
    options(at(protocol), names);
    const other = at("protocol-a").value;
    at(protocol).value = names.includes(before) ? before : names.includes(other) ? other : names[0] ?? "";
  }));
  options(at("protocol-a"), protocols(models[0]));
  const first = content.records.find(record => record.model === models[0] && record.attack);
  if (first) at("protocol-a").value = title(first);
  document.querySelector(".controls").addEventListener("change", () => { shown = STEP; show(); });
  at("more").addEventListener("click", () => { shown += STEP; show(); });
  show();
}
start();
