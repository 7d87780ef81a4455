// The page with scripts: filters, sorted tables, charts, downloads. All texts reach the page as text, never as HTML.
"use strict";
(async () => {
  const DRAWN_AT_ONCE = 6, ROWS_AT_ONCE = 60, POINTS_MOST = 3000, WIDE_PX = 430, LONG = 160;
  const block = document.getElementById("data");
  const { tables, exhibits, dimensions, titles, doubts, config } = JSON.parse(await content(block));
  const state = {}, sorted = {}, wanted = {}, decoded = {};
  const sections = new Map(exhibits.map((exhibit) => [exhibit.name, document.getElementById(exhibit.name)]));

  async function content(element) {
    if (element.dataset.encoding !== "gzip") return element.textContent;
    const bytes = Uint8Array.from(atob(element.textContent.trim()), (sign) => sign.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }

  // ---- data: a column is {n: numbers}, or {of: texts, at: which of them}

  function cells(table, name) {
    const key = `${table}/${name}`;
    if (!(key in decoded)) {
      const column = tables[table] && tables[table][name];
      decoded[key] = !column ? null : column.n || column.at.map((at) => (at < 0 ? null : column.of[at]));
    }
    return decoded[key];
  }
  const isNumber = (table, name) => Boolean(tables[table][name] && tables[table][name].n);

  function filtered(exhibit) {
    const chosen = [...dimensions, "layer"].filter((name) => state[name] && cells(exhibit.table, name));
    const columns = chosen.map((name) => cells(exhibit.table, name));
    const reference = exhibit.at_reference && !state.size ? cells(exhibit.table, "is_reference") : null;
    const found = [];
    exhibit.matching = 0;
    for (let row = 0; row < exhibit.rows; row++) {
      if (!columns.every((column, at) => column[row] === null || String(column[row]) === state[chosen[at]])) continue;
      exhibit.matching++;
      if (!reference || reference[row] === true) found.push(row);
    }
    return inOrder(exhibit, found, exhibit.order);
  }

  function inOrder(exhibit, rows, order) {
    const values = order && cells(exhibit.table, order.replace(/^-/, ""));
    if (!values) return rows;
    const sign = order.startsWith("-") ? -1 : 1;
    const rank = (value) => (value === null || value === undefined ? 1 : 0);
    const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
    return rows.slice().sort((a, b) => rank(values[a]) - rank(values[b]) || sign * compare(values[a], values[b]) || a - b);
  }

  // ---- tables

  function shown(value, doubt) {
    if (value === null || value === undefined) return "";
    if (value === true || value === false) return value ? "yes" : "no";
    if (typeof value !== "number") return String(value);
    const size = Math.abs(value);
    if (size >= 1000) return size >= 1e4 ? Math.round(value).toLocaleString("en") : String(Math.round(value));
    if (typeof doubt === "number" && doubt > 0 && value) {
      const decimals = Math.min(1 - Math.floor(Math.log10(doubt)), 3 - Math.floor(Math.log10(size)));
      const text = value.toFixed(Math.max(0, decimals));
      return Number(text) ? text : text.replace("-", "");
    }
    if (Number.isInteger(value)) return String(value);
    return size >= 1e-4 ? String(Number(value.toPrecision(size >= 1e-3 ? 4 : 3))) : value.toExponential(2);
  }

  function fill(exhibit) {
    const section = sections.get(exhibit.name), body = section.querySelector("tbody");
    if (!body) return;
    const order = sorted[exhibit.name], every = exhibit.shown_rows;
    const rows = order ? inOrder(exhibit, every, order) : every;
    const most = wanted[`${exhibit.name} rows`] || ROWS_AT_ONCE;
    const good = (row) => ["status", "outcome"].every((name) => { const of = cells(exhibit.table, name); return !of || of[row] === null || of[row] === "ok"; });
    const lines = document.createDocumentFragment();
    for (const row of rows.slice(0, most)) {
      const line = document.createElement("tr");
      if (!good(row)) line.className = "bad";
      for (const name of exhibit.columns) line.append(cell(exhibit, name, row));
      lines.append(line);
    }
    body.replaceChildren(lines);
    const count = section.querySelector(".count");
    count.textContent = rows.length > most ? `${most} of ${rows.length.toLocaleString("en")} rows` : `${rows.length.toLocaleString("en")} ${rows.length === 1 ? "row" : "rows"}`;
    section.querySelector(".more").hidden = rows.length <= most;
    for (const head of section.querySelectorAll("th")) {
      const name = head.dataset.column;
      if (order && order.replace(/^-/, "") === name) head.setAttribute("aria-sort", order.startsWith("-") ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
  }

  function cell(exhibit, name, row) {
    const doubt = exhibit.columns.includes(doubts[name]) ? cells(exhibit.table, doubts[name])[row] : null;
    const made = document.createElement("td"), text = shown(cells(exhibit.table, name)[row], doubt);
    if (isNumber(exhibit.table, name)) made.className = "n";
    else if (text.length > LONG) made.className = "long";
    if (name === "layer" && text && exhibit.view === "layers") {
      const link = document.createElement("a");
      link.href = fragment({ ...state, view: "layers", layer: text });
      link.textContent = text;
      made.append(link);
    } else made.textContent = text;
    return made;
  }

  // ---- charts

  function panels(exhibit) {
    const titlesOf = cells(exhibit.table, exhibit.panel), found = new Map();
    const only = exhibit.only && cells(exhibit.table, exhibit.only), plain = exhibit.only && isNumber(exhibit.table, exhibit.only);
    for (const row of exhibit.shown_rows) {
      if (only && (only[row] === null || (plain && !Number.isFinite(only[row])))) continue;
      const name = titlesOf ? titlesOf[row] : "";
      if (!found.has(name)) found.set(name, []);
      found.get(name).push(row);
    }
    const all = [...found], kept = all.filter(([, rows]) => !exhibit.several || names(exhibit, rows, exhibit.several).size > 1);
    return [kept.map(([name, rows]) => reduced(exhibit, name === null ? "" : name, rows)), all.length - kept.length];
  }

  function reduced(exhibit, name, rows) {
    const notes = [];
    if (exhibit.one) {
      // Of rows in order of time, the value whose first row comes last: the layer whose fastest candidate is the slowest.
      const values = cells(exhibit.table, exhibit.one), last = [...new Set(rows.map((row) => values[row]))].at(-1);
      rows = rows.filter((row) => values[row] === last);
      name = `${name} · ${last}`;
    }
    for (const [column, most, rank] of exhibit.top) {
      const values = cells(exhibit.table, column);
      const names = [...new Set(inOrder(exhibit, rows, rank).map((row) => values[row]))].filter((name) => name !== null);
      if (names.length > most) {
        const kept = new Set([null, ...names.slice(0, most)]);
        rows = rows.filter((row) => kept.has(values[row]));
        notes.push(`the first ${most} of ${names.length} ${titles[column] || column}s are drawn`);
      }
    }
    if (rows.length > POINTS_MOST) {
      const step = Math.ceil(rows.length / POINTS_MOST);
      rows = rows.filter((_, at) => at % step === 0);
      notes.push(`every ${step}th row is drawn`);
    }
    return { name, rows, note: notes.join("; ") };
  }

  function records(exhibit, rows) {
    const names = exhibit.fields.filter((name) => cells(exhibit.table, name));
    return rows.map((row) => Object.fromEntries(names.map((name) => {
      const value = cells(exhibit.table, name)[row];
      return [name, isNumber(exhibit.table, name) && typeof value === "string" ? null : value];
    })));
  }

  function logarithmic(part) {
    if (Array.isArray(part)) return part.map(logarithmic);
    if (!part || typeof part !== "object") return part;
    const copy = Object.fromEntries(Object.entries(part).map(([name, value]) => [name, logarithmic(value)]));
    for (const name of ["x", "y"]) {
      if (!copy[name] || copy[name].type !== "quantitative") continue;
      const { zero, ...scale } = copy[name].scale || {};
      copy[name].scale = { ...scale, type: "log", nice: false };
    }
    return copy;
  }

  // Scales with the names that are drawn; a name keeps its colour.
  function present(part, rows) {
    if (Array.isArray(part)) return part.map((each) => present(each, rows));
    if (!part || typeof part !== "object") return part;
    const copy = Object.fromEntries(Object.entries(part).map(([name, value]) => [name, present(value, rows)]));
    const scale = copy.scale;
    if (copy.field && scale && scale.range && Array.isArray(scale.domain) && rows.length && copy.field in rows[0]) {
      const found = new Set(rows.map((row) => row[copy.field])), kept = scale.domain.map((name) => found.has(name));
      copy.scale = { ...scale, domain: scale.domain.filter((_, at) => kept[at]), range: scale.range.filter((_, at) => kept[at]) };
    }
    return copy;
  }

  function plan(exhibit) {
    const section = sections.get(exhibit.name), box = section.querySelector(".charts");
    if (!box) return;
    const [every, alone] = panels(exhibit), most = wanted[`${exhibit.name} charts`] || DRAWN_AT_ONCE;
    for (const child of box.children) if (child.finish) child.finish();
    box.replaceChildren(...every.slice(0, most).map((panel) => figureOf(exhibit, panel)));
    const more = section.querySelector(".more-charts");
    more.hidden = every.length <= most;
    more.textContent = `show all ${every.length} pictures`;
    for (const figure of box.children) watcher.observe(figure);
    section.querySelector(".undrawn")?.remove();
    if (alone) {
      const note = document.createElement("p");
      note.className = "soft undrawn";
      const of = `${alone} ${every.length ? "other " : ""}${alone > 1 ? "pictures" : "picture"}`;
      note.textContent = `${of} would be of one ${titles[exhibit.several].split(",")[0]}: not drawn, the table has the figures.`;
      box.after(note);
    }
  }

  function figureOf(exhibit, panel) {
    const figure = document.createElement("figure"), caption = document.createElement("figcaption"), box = document.createElement("div");
    const by = exhibit.spec.usermeta || {}, needed = by.columns ? by.edges_px + by.cell_px * names(exhibit, panel.rows, by.columns).size : 0;
    figure.classList.toggle("wide", needed > WIDE_PX);
    caption.textContent = panel.name;
    box.className = "drawing";
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", `${exhibit.title}: ${panel.name}. The table above has the figures.`);
    figure.append(caption, box);
    if (panel.note) {
      const note = document.createElement("div");
      note.className = "soft";
      note.textContent = panel.note;
      figure.append(note);
    }
    figure.draw = async () => {
      figure.draw = null;
      const base = exhibit.has_log && state.log !== "off" ? logarithmic(exhibit.spec) : exhibit.spec;
      const rows = records(exhibit, panel.rows);
      const height = by.rows ? by.row_px * names(exhibit, panel.rows, by.rows).size : base.height;
      const drawing = document.createElement("div");
      const scrolls = needed > box.clientWidth;
      drawing.style.width = scrolls ? `${needed}px` : "100%";
      if (scrolls) box.tabIndex = 0;
      box.append(drawing);
      const layer = base.layer && base.layer.filter((part) => {
        const needs = /_of_(\w+)$/.exec(part.name || "");
        return !needs || rows.some((row) => row[needs[1]] !== null && row[needs[1]] !== undefined);
      });
      const title = { text: lines(exhibit.title, box.clientWidth / 7.4, " "), subtitle: lines(panel.name, box.clientWidth / 6.3) };
      const spec = { ...present({ ...base, ...(layer && { layer }) }, rows), title, height, data: { name: "rows", values: rows } };
      const columns = Math.max(1, Math.floor((box.clientWidth - 40) / (5.9 * longest(spec) + 30)));
      const anchor = by.rows && !by.columns ? "end" : "start";  // names left of the axis leave no room right of it
      const look = { ...config, legend: { ...config.legend, columns, layout: { top: { anchor, direction: "vertical" } } } };
      const result = await vegaEmbed(drawing, spec, { ast: true, renderer: "svg", actions: false, config: look, tooltip: { theme: "light" } });
      figure.finish = () => result.finalize();
      figure.append(tools(exhibit, panel, result.view));
    };
    return figure;
  }

  const names = (exhibit, rows, name) => { const values = cells(exhibit.table, name); return new Set(rows.map((row) => values[row])); };

  // The length of the longest name in a legend.
  function longest(part) {
    if (!part || typeof part !== "object") return 1;
    const own = part.legend !== null && part.scale && Array.isArray(part.scale.domain) ? part.scale.domain.map((name) => String(name).length) : [];
    return Math.max(1, ...own, ...Object.entries(part).map(([name, each]) => (name === "data" ? 1 : longest(each))));
  }

  // A panel's title on as many lines as it needs.
  function lines(text, most, between = " · ") {
    const found = [""], whole = Math.max(10, Math.floor(most));
    for (const word of text.split(between).flatMap((each) => each.match(new RegExp(`.{1,${whole}}`, "gu")) || [])) {
      const longer = found.at(-1) ? `${found.at(-1)}${between}${word}` : word;
      if (longer.length > most && found.at(-1)) found.push(word);
      else found[found.length - 1] = longer;
    }
    return found;
  }

  function tools(exhibit, panel, view) {
    const row = document.createElement("div"), stem = `${exhibit.name} ${panel.name}`;
    row.className = "tools";
    row.append(
      button("SVG", `${exhibit.title}, ${panel.name}: save as SVG`, async () => save(new Blob([await view.toSVG()], { type: "image/svg+xml" }), `${stem}.svg`)),
      button("PNG", `${exhibit.title}, ${panel.name}: save as PNG`, async () => {
        const canvas = await view.toCanvas(2), flat = document.createElement("canvas"), ink = flat.getContext("2d");
        flat.width = canvas.width; flat.height = canvas.height;
        ink.fillStyle = "#fff"; ink.fillRect(0, 0, flat.width, flat.height); ink.drawImage(canvas, 0, 0);
        flat.toBlob((blob) => save(blob, `${stem}.png`), "image/png");
      }),
    );
    return row;
  }

  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting && entry.target.draw) entry.target.draw();
  }, { rootMargin: "300px" });

  async function drawRest() {
    for (;;) {
      const next = [...document.querySelectorAll("figure")].find((figure) => figure.draw);
      if (!next) break;
      await next.draw();
      await new Promise((done) => setTimeout(done));
    }
    document.documentElement.dataset.drawn = "all";
  }

  // ---- downloads

  function button(text, label, act) {
    const made = document.createElement("button");
    made.type = "button"; made.textContent = text; made.setAttribute("aria-label", label);
    made.addEventListener("click", act);
    return made;
  }

  function save(blob, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name.replace(/[^\w.+-]+/g, "_").slice(0, 120).replace(/^\.+/, "") || "data";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  function csv(exhibit) {
    const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text);
    const written = (value) => {
      if (value === null || value === undefined) return "";
      if (typeof value !== "string") return String(value);
      return quoted(/^\s*[=+@\uff1d\uff0b\uff0d\uff20\t-]/.test(value) ? `'${value}` : value);  // a sheet would run it as a formula
    };
    const columns = exhibit.columns.map((name) => cells(exhibit.table, name));
    const lines = exhibit.shown_rows.map((row) => columns.map((column) => written(column[row])).join(","));
    return [exhibit.columns.join(","), ...lines, ""].join("\n");
  }

  // ---- filters and the address

  function fragment(next) {
    const parts = new URLSearchParams(Object.entries(next).filter(([, value]) => value));
    return `#${parts}`;
  }

  function readAddress() {
    const raw = location.hash.slice(1), found = new URLSearchParams(raw.includes("=") ? raw : raw && `view=${raw}`);
    for (const name of Object.keys(state)) delete state[name];
    for (const name of [...dimensions, "layer", "view", "log"]) if (found.get(name)) state[name] = found.get(name);
  }

  function options(select) {
    const name = select.name, found = new Set();
    for (const exhibit of exhibits) for (const value of cells(exhibit.table, name) || []) if (value !== null) found.add(String(value));
    if (state[name]) found.add(state[name]);
    const values = [...found].sort((a, b) => a.localeCompare(b, "en", { numeric: true })).slice(0, 2000);
    select.replaceChildren(new Option("all", ""), ...values.map((value) => new Option(value, value)));
    select.value = state[name] || "";
    select.closest("label").hidden = values.length < 2;
  }

  function apply() {
    const before = JSON.stringify({ ...state, view: "" });
    readAddress();
    markView();
    if (before === JSON.stringify({ ...state, view: "" }) && exhibits.every((exhibit) => exhibit.shown_rows)) return;
    delete document.documentElement.dataset.drawn;
    for (const select of document.querySelectorAll(".filters select")) options(select);
    document.getElementById("log").checked = state.log !== "off";
    document.getElementById("reset").hidden = ![...dimensions, "layer"].some((name) => state[name]);
    let rows = 0, all = 0;
    for (const exhibit of exhibits) {
      exhibit.shown_rows = filtered(exhibit);
      rows += exhibit.matching; all += exhibit.rows;
      fill(exhibit);
      plan(exhibit);
    }
    document.getElementById("said").textContent = rows === all ? "" : `${rows.toLocaleString("en")} of ${all.toLocaleString("en")} rows of all tables match.`;
    setTimeout(drawRest, 50);
  }

  function markView() {
    for (const link of document.querySelectorAll("nav a")) {
      const view = link.dataset.view;
      link.href = fragment({ ...state, view });
      if (view === (state.view || "overview")) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
    }
  }

  function go(next) {
    const address = fragment(next);
    if (address === location.hash) return;
    history.pushState(null, "", address === "#" ? location.pathname + location.search : address);
    apply();
  }

  function start() {
    for (const element of document.querySelectorAll("[data-script]")) element.hidden = false;
    for (const select of document.querySelectorAll(".filters select")) {
      select.addEventListener("change", () => go({ ...state, [select.name]: select.value }));
    }
    document.getElementById("log").addEventListener("change", (event) => go({ ...state, log: event.target.checked ? "" : "off" }));
    document.getElementById("reset").addEventListener("click", () => go({ view: state.view, log: state.log }));
    for (const exhibit of exhibits) {
      const section = sections.get(exhibit.name);
      section.querySelector(".csv").addEventListener("click", () => save(new Blob([csv(exhibit)], { type: "text/csv" }), `${exhibit.name}.csv`));
      section.querySelector(".more").addEventListener("click", () => { wanted[`${exhibit.name} rows`] = 2000; fill(exhibit); });
      const more = section.querySelector(".more-charts");
      if (more) more.addEventListener("click", () => { wanted[`${exhibit.name} charts`] = Infinity; plan(exhibit); setTimeout(drawRest, 50); });
      for (const head of section.querySelectorAll("th")) {
        const name = head.dataset.column, made = button(head.textContent, `${head.textContent}: sort`, () => {
          sorted[exhibit.name] = sorted[exhibit.name] === `-${name}` ? name : `-${name}`;
          fill(exhibit);
        });
        head.replaceChildren(made);
      }
    }
    window.addEventListener("hashchange", () => { apply(); toView(); });
    document.querySelector(".filters").open = innerWidth >= 900;
    apply();
    toView();
  }

  function toView() {
    const section = state.view && document.getElementById(`view-${state.view}`);
    if (section) section.scrollIntoView();
  }

  start();
})();
