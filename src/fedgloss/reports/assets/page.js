"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const root = document.documentElement;
  let data = JSON.parse(byId("report-data").textContent);

  // What the reader has chosen. Methods and settings go by name, so that a choice outlives newer data.
  const state = {
    theme: remembered("theme") || "auto",
    setting: null,
    hidden: new Set(),
    everySeed: false,
    choice: {},    // card -> which of its quantities
    log: {},       // card -> logarithmic or not
    surfaces: {},  // surface -> "solid", "net" or "off"
  };

  // ---------------------------------------------------------------- small tools

  /** An element; text is always text, never markup. */
  function el(tag, props = {}, ...children) {
    const svg = tag === "svg" || tag === "line";
    const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [key, value] of Object.entries(props)) {
      if (value === null || value === undefined || value === false) continue;
      if (key === "text") node.textContent = value;
      else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else node.setAttribute(key, value === true ? "" : value);
    }
    node.append(...children.filter((child) => child !== null));
    return node;
  }

  const TYPES = { u2: Uint16Array, u4: Uint32Array, f4: Float32Array, f8: Float64Array };
  const decoded = new WeakMap();

  function decode(packed) {
    if (!decoded.has(packed)) {
      const [type, text] = Object.entries(packed)[0];
      const characters = atob(text);
      const bytes = new Uint8Array(characters.length);
      for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i);
      decoded.set(packed, new TYPES[type](bytes.buffer));
    }
    return decoded.get(packed);
  }

  /** Plotly reads a little HTML in its texts: take its meaning away. */
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  const fileName = (text) => text.normalize("NFKD").replace(/[^\w.]+/g, "-").replace(/^-+|-+$/g, "").toLowerCase() || "fedgloss";
  const say = (text) => { byId("said").textContent = text; };

  function remembered(key, value) {
    try {
      if (value !== undefined) localStorage.setItem("fedgloss-" + key, value);
      return localStorage.getItem("fedgloss-" + key);
    } catch { return null; }  // a page opened from disk may have no storage
  }

  function download(name, url) {
    const link = el("a", { href: url, download: name });
    document.body.append(link);
    link.click();
    link.remove();
    say(`Saved ${name}`);
  }

  function save(name, text, type) {
    const url = URL.createObjectURL(new Blob([text], { type: `${type};charset=utf-8` }));
    download(name, url);
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }

  const narrow = () => innerWidth < 640 && !printing;
  const setting = () => data.settings.find((s) => s.name === state.setting) || data.settings[0];
  const shownMethods = () => setting().methods.map((i) => data.methods[i]).filter((m) => !state.hidden.has(m.label));
  const isShown = (index) => !state.hidden.has(data.methods[index].label);
  const dark = () => root.dataset.theme === "dark";
  const colour = (method) => data.palette[dark() ? "dark" : "light"][method.colour];

  function faded(hex, alpha) {
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
    return `rgba(${r},${g},${b},${alpha})`;
  }

  function mixed(hex, other, share) {
    const parts = [1, 3, 5].map((i) => {
      const [a, b] = [hex, other].map((h) => parseInt(h.slice(i, i + 2), 16));
      return Math.round(a + (b - a) * share);
    });
    return `rgb(${parts.join(",")})`;
  }

  function bytes(count) {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let unit = 0;
    while (count >= 1000 && unit < units.length - 1) { count /= 1000; unit++; }
    return `${unit ? count.toFixed(1) : count.toFixed(0)} ${units[unit]}`;
  }

  // ---------------------------------------------------------------- theme

  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const THEMES = ["auto", "light", "dark"];

  function applyTheme(theme = state.theme) {
    root.dataset.theme = theme === "auto" ? (prefersDark.matches ? "dark" : "light") : theme;
    const name = { auto: "Theme: auto", light: "Theme: light", dark: "Theme: dark" }[state.theme];
    byId("theme").textContent = name;
    byId("theme").setAttribute("aria-label", `Colour ${name.toLowerCase()}. Press to change.`);
  }

  byId("theme").addEventListener("click", () => {
    state.theme = THEMES[(THEMES.indexOf(state.theme) + 1) % THEMES.length];
    remembered("theme", state.theme);
    applyTheme();
    renderControls();
    redraw();
  });
  prefersDark.addEventListener("change", () => { applyTheme(); renderControls(); redraw(); });

  // ---------------------------------------------------------------- tables

  function cellNode(cell, first, column) {
    const { text, bold, marked, note } = typeof cell === "string" ? { text: cell } : cell;
    const node = el(first ? "th" : "td", {
      class: column.numeric ? "number" : text.length > 40 ? "wrap" : null,
      scope: first ? "row" : null,
      title: note,
    });
    if (text.startsWith("✗")) {
      node.append(el("span", { class: "cross", "aria-hidden": "true", text: "✗" }), el("span", { class: "unseen", text: "diverged" }), text.slice(1));
    } else if (bold) node.append(el("b", { text }));
    else if (marked) node.append(el("mark", { text }));
    else node.textContent = text;
    return node;
  }

  function tableNode(table) {
    const head = el("thead");
    if (table.columns.some((column) => column.group)) {
      const row = el("tr");
      for (let i = 0; i < table.columns.length;) {
        let width = 1;
        const { group } = table.columns[i];
        while (group && i + width < table.columns.length && table.columns[i + width].group === group) width++;
        row.append(group ? el("th", { colspan: width, scope: "colgroup", text: group }) : el("td"));
        i += width;
      }
      head.append(row);
    }
    head.append(el("tr", {}, ...table.columns.map((c) => el("th", { scope: "col", class: c.numeric ? "number" : null, text: c.name }))));
    const node = el("table", { "aria-labelledby": `title-${table.id}` }, head);
    for (const group of table.groups) {
      const body = el("tbody");
      if (group.name) body.append(el("tr", { class: "group" }, el("th", { colspan: table.columns.length, scope: "rowgroup", text: group.name })));
      for (const row of group.rows) body.append(el("tr", {}, ...row.map((cell, i) => cellNode(cell, i === 0, table.columns[i]))));
      node.append(body);
    }
    return node;
  }

  function tableBlock(table, { tall = false, level = "h3" } = {}) {
    if (!table) return null;
    const save_as = (label, ending, text, type) => el("button", {
      type: "button", text: label, "aria-label": `Save the table “${table.title}” as ${label}`,
      onclick: () => save(`${fileName(table.id)}.${ending}`, text, type),
    });
    return el("div", { class: "block", "data-table": table.id },
      el("div", { class: "head" },
        el(level, { id: `title-${table.id}`, text: table.title }),
        el("div", { class: "tools" },
          save_as("CSV", "csv", table.csv, "text/csv"),
          save_as("Markdown", "md", table.markdown, "text/markdown"),
          save_as("LaTeX", "tex", table.latex, "application/x-tex"))),
      el("div", { class: tall ? "scroll tall" : "scroll", tabindex: 0, role: "region", "aria-labelledby": `title-${table.id}` }, tableNode(table)),
      table.notes.length ? el("ul", { class: "notes" }, ...table.notes.map((text) => el("li", { text }))) : null);
  }

  const facts = (pairs) => el("dl", { class: "facts" }, ...pairs.flatMap(([term, text]) => [el("dt", { text: term }), text instanceof Node ? el("dd", {}, text) : el("dd", { text })]));

  // ---------------------------------------------------------------- figures

  let printing = null;  // while the page is on its way to paper, the theme to go back to
  const charts = new Map();  // id -> { spec, node, plot, seen, stale, drawn }
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const chart = charts.get(entry.target.dataset.chart);
      if (!chart) continue;
      chart.seen = entry.isIntersecting;
    }
    drawSeen();
  }, { rootMargin: "300px" });

  /** One figure at a time: the first is there soon, and the page answers between them. */
  function drawSeen() {
    const next = [...charts.values()].find((chart) => chart.seen && chart.stale);
    if (!next) return;
    draw(next);
    setTimeout(drawSeen);
  }

  /** Make the figures of a section those of `specs`, keeping the ones that stay. */
  function arrange(container, specs) {
    const wanted = specs.map((spec) => spec.id);
    const present = [...container.querySelectorAll("[data-chart]")].map((node) => node.dataset.chart);
    if (wanted.join() !== present.join()) {
      for (const id of present) { observer.unobserve(charts.get(id).plot); Plotly.purge(charts.get(id).plot); charts.delete(id); }
      container.replaceChildren(...specs.map(cardNode));
    }
    for (const spec of specs) {
      const chart = charts.get(spec.id);
      chart.spec = spec;
      fillControls(chart);
      chart.stale = true;
      if (chart.seen) draw(chart);
    }
    drawTheRest();
  }

  function cardNode(spec) {
    const plot = el("div", { class: "plot", role: "img", "data-chart": spec.id, tabindex: spec.scene ? 0 : null });
    const title = el("h3", { text: spec.title });
    const tools = el("div", { class: "tools" });
    const extra = el("div");
    const about = el("p", { class: "about", text: spec.about || "" });
    const node = el("figure", { class: `card${spec.wide ? " wide" : ""}${spec.tall ? " tall" : ""}` },
      el("div", { class: "head" }, title, tools), about, extra, plot);
    charts.set(spec.id, { spec, node, plot, title, tools, extra, about, seen: false, stale: true, drawn: false });
    if (spec.scene) turnByKeys(plot);
    observer.observe(plot);
    return node;
  }

  function fillControls(chart) {
    const { spec, tools } = chart;
    if (tools.contains(document.activeElement)) return;  // in use: leave it be
    chart.title.textContent = spec.title;
    chart.about.textContent = spec.about || "";
    chart.about.hidden = !spec.about;
    const parts = [];
    if (spec.choices && spec.choices.length > 1) {
      const select = el("select", { "aria-label": `What “${spec.title}” shows`, onchange: (event) => { state.choice[spec.id] = event.target.value; refresh(chart); } },
        ...spec.choices.map(([value, text]) => el("option", { value, text, selected: value === chosen(spec) })));
      parts.push(select);
    }
    if (spec.log !== undefined) {
      parts.push(el("button", { type: "button", text: "Log", "aria-pressed": String(isLog(spec)), "aria-label": `Logarithmic scale for “${spec.title}”`,
        onclick: (event) => { state.log[spec.id] = !isLog(spec); event.target.setAttribute("aria-pressed", String(isLog(spec))); refresh(chart); } }));
    }
    for (const format of ["svg", "png"]) {
      parts.push(el("button", { type: "button", text: format.toUpperCase(), "aria-label": `Save the figure “${spec.title}” as ${format.toUpperCase()}`, onclick: () => saveFigure(chart, format) }));
    }
    parts.push(el("button", { type: "button", text: "Reset", "aria-label": `Reset the view of “${spec.title}”`, onclick: () => { chart.fresh = (chart.fresh || 0) + 1; refresh(chart); } }));
    tools.replaceChildren(...parts);
    chart.extra.replaceChildren(...(spec.extra ? [spec.extra(() => refresh(chart))] : []));
  }

  const chosen = (spec) => {
    const values = (spec.choices || []).map(([value]) => value);
    return values.includes(state.choice[spec.id]) ? state.choice[spec.id] : values[0];
  };
  const isLog = (spec) => state.log[spec.id] ?? spec.log;

  function refresh(chart) {
    chart.stale = true;
    draw(chart);
  }

  function redraw() {
    for (const chart of charts.values()) {
      chart.stale = true;
      if (chart.seen) draw(chart);
    }
    drawTheRest();
  }

  /** What is not in sight is drawn when there is nothing better to do, so that it is there to print. */
  let resting = false;
  function drawTheRest() {
    if (resting) return;
    resting = true;
    // a busy machine may never be idle: after half a second it is drawn all the same
    const idle = window.requestIdleCallback ? (work) => requestIdleCallback(work, { timeout: 500 }) : (work) => setTimeout(work, 200);
    const step = () => {
      const next = [...charts.values()].find((chart) => chart.stale);
      if (!next) { resting = false; root.dataset.drawn = "all"; return; }
      draw(next);
      idle(step);
    };
    delete root.dataset.drawn;
    idle(step);
  }

  function draw(chart) {
    const { spec, plot } = chart;
    chart.stale = false;
    const figure = spec.figure(chosen(spec), isLog(spec));
    plot.setAttribute("aria-label", `${spec.title}. ${figure.says || ""}${spec.scene ? " Arrow keys turn it, plus and minus zoom." : ""}`);
    plot.querySelector(".empty")?.remove();
    plot.style.height = plot.style.flexBasis = figure.height ? `${figure.height}px` : "";
    if (!figure.traces.length) {
      if (chart.drawn) Plotly.purge(plot);
      chart.drawn = false;
      plot.append(el("div", { class: "empty", text: figure.empty || "Nothing to show: every method is switched off." }));
      return;
    }
    const layout = themed(figure.layout || {});
    if (printing) Object.assign(layout, { width: plot.clientWidth, height: plot.clientHeight });
    layout.uirevision = `${state.setting}|${chart.fresh || 0}|${chosen(spec)}|${isLog(spec)}`;
    if (spec.scene) keepCamera(chart, layout);
    Plotly.react(plot, figure.traces, layout, { displayModeBar: false, responsive: !printing, scrollZoom: !!spec.scene });
    if (!chart.drawn && spec.scene) watchScene(chart);
    chart.drawn = true;
  }

  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  function axis(extra = {}) {
    const line = css("--line");
    return { gridcolor: css("--grid"), linecolor: line, tickcolor: line, zeroline: false, automargin: true, ticks: "outside", ticklen: 4, ...extra, title: { text: extra.title || "", standoff: 8 } };
  }

  function themed(layout) {
    const ink = css("--ink");
    const space = (extra) => ({ backgroundcolor: "rgba(0,0,0,0)", gridcolor: css("--line"), color: css("--soft"), zeroline: false, showspikes: false, ...extra });
    const full = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: css("--font"), size: 12, color: css("--soft") },
      margin: { l: 48, r: 14, t: 10, b: 40 }, showlegend: false, hovermode: "closest",
      hoverlabel: { namelength: -1, bgcolor: css("--raised"), bordercolor: css("--line"), font: { family: css("--font"), color: ink, size: 12 } },
      ...layout,
    };
    for (const key of Object.keys(full)) if (/^[xy]axis\d*$/.test(key)) full[key] = axis(full[key]);
    if (full.scene) for (const key of ["xaxis", "yaxis", "zaxis"]) full.scene[key] = space(full.scene[key]);
    return full;
  }

  /** The figure on white, with a legend of its own, as a file. */
  async function saveFigure(chart, format) {
    const before = root.dataset.theme;
    root.dataset.theme = "light";
    const figure = chart.spec.figure(chosen(chart.spec), isLog(chart.spec));
    const layout = themed(figure.layout || {});
    root.dataset.theme = before;
    if (!figure.traces.length) { say("There is nothing to save."); return; }
    if (chart.spec.scene) keepCamera(chart, layout);
    else if (chart.drawn && chart.plot._fullLayout) {
      for (const name of ["xaxis", "yaxis"]) {
        const shown = chart.plot._fullLayout[name];
        if (layout[name] && shown && !shown.autorange) Object.assign(layout[name], { range: shown.range.slice(), autorange: false });
      }
    }
    layout.paper_bgcolor = layout.plot_bgcolor = "#ffffff";
    layout.showlegend = figure.traces.some((trace) => trace.name && trace.showlegend !== false);
    layout.legend = { orientation: "h", y: -0.22, x: 0, xanchor: "left" };
    layout.title = { text: plain(chart.spec.title), x: 0.02, xanchor: "left", font: { size: 15, color: "#16191d" } };
    layout.margin = { ...layout.margin, t: 46 };
    const [width, height] = chart.spec.wide ? [1100, 620] : [800, 560];
    const url = await Plotly.toImage({ data: figure.traces, layout }, { format, width, height, scale: format === "png" ? 2 : 1 });
    download(`${fileName(`${chart.spec.title}-${setting().name}`)}.${format}`, url);
  }

  // ---------------------------------------------------------------- 3-D: cameras, keys, a picture for paper

  const START = { eye: { x: 1.2, y: 1.2, z: 0.7 }, up: { x: 0, y: 0, z: 1 }, center: { x: 0, y: 0, z: -0.17 } };
  const FARTHER = { ...START, eye: { x: 1.85, y: 1.85, z: 1.1 } };  // a narrow figure would cut the axes off
  const start = () => (narrow() ? FARTHER : START);

  function keepCamera(chart, layout) {
    if (chart.fresh !== chart.cameraOf) { chart.camera = null; chart.cameraOf = chart.fresh; }
    layout.scene.camera = chart.camera || start();
  }

  function watchScene(chart) {
    chart.plot.on("plotly_relayout", (change) => {
      const camera = change["scene.camera"];
      if (camera) { chart.camera = camera; chart.plot.dataset.eye = [camera.eye.x, camera.eye.y, camera.eye.z].map((v) => v.toFixed(3)).join(" "); }
    });
    // the wheel scrolls the page until the scene is clicked or tabbed to
    chart.plot.addEventListener("wheel", (event) => { if (!chart.plot.contains(document.activeElement)) event.stopPropagation(); }, { capture: true, passive: true });
    chart.plot.addEventListener("mousedown", () => chart.plot.focus({ preventScroll: true }), { capture: true });
  }

  function turnByKeys(plot) {
    plot.addEventListener("keydown", (event) => {
      const chart = charts.get(plot.dataset.chart);
      const turns = { ArrowLeft: [-0.15, 0], ArrowRight: [0.15, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1] };
      const zooms = { "+": 0.9, "=": 0.9, "-": 1.1 };
      if (!chart.drawn || !(event.key in turns || event.key in zooms)) return;
      event.preventDefault();
      const camera = structuredClone(chart.camera || start());
      const { x, y, z } = camera.eye;
      let distance = Math.hypot(x, y, z), around = Math.atan2(y, x), height = Math.asin(z / distance);
      if (event.key in turns) { around += turns[event.key][0]; height = Math.max(-1.4, Math.min(1.4, height + turns[event.key][1])); }
      else distance *= zooms[event.key];
      camera.eye = { x: distance * Math.cos(height) * Math.cos(around), y: distance * Math.cos(height) * Math.sin(around), z: distance * Math.sin(height) };
      Plotly.relayout(plot, { "scene.camera": camera });
    });
  }

  // ---------------------------------------------------------------- curves

  function line(method, extra) {
    return { type: "scatter", mode: "lines", name: plain(method.label), line: { color: colour(method), dash: method.stroke, width: 2 }, ...extra };
  }

  /** The area between two curves, leaving out what is not a number. */
  function band(method, x, low, high) {
    const there = [];
    for (let i = 0; i < x.length; i++) if (Number.isFinite(low[i]) && Number.isFinite(high[i])) there.push(i);
    const back = there.slice().reverse();
    return {
      type: "scatter", mode: "lines", fill: "toself", fillcolor: faded(colour(method), shownMethods().length > 4 ? 0.08 : 0.15), line: { width: 0 }, hoverinfo: "skip", showlegend: false,
      x: [...there.map((i) => x[i]), ...back.map((i) => x[i])], y: [...there.map((i) => high[i]), ...back.map((i) => low[i])],
    };
  }

  function curveTraces(quantity, against, log) {
    const areas = [], lines = [], ends = [];
    for (const entry of setting().curves[quantity.id] || []) {
      if (!isShown(entry.method)) continue;
      const method = data.methods[entry.method];
      const where = against === "bytes" ? "%{x:.3s}B" : "round %{x:,}";
      if (entry.mean && !state.everySeed) {
        const [x, y, sd] = [entry.mean[against], entry.mean.values, entry.mean.sd].map(decode);
        const least = log ? y.reduce((low, v) => (v > 0 && v < low ? v : low), Infinity) / 10 : -Infinity;
        areas.push(band(method, x, y.map((v, i) => Math.max(v - sd[i], least)), y.map((v, i) => v + sd[i])));
        lines.push(line(method, { x, y, customdata: sd, hovertemplate: `${where}<br>%{y:.5~g} ± %{customdata:.2~g}`, ...dots(x) }));
      } else {
        entry.runs.forEach((run, index) => lines.push(line(method, {
          x: decode(run[against]), y: decode(run.values), showlegend: index === 0, hovertemplate: `${where}, seed ${run.seed}<br>%{y:.5~g}`,
          line: { color: colour(method), dash: method.stroke, width: entry.runs.length > 1 ? 1.3 : 2 }, ...dots(decode(run[against])),
        })));
      }
      for (const run of entry.runs.filter((r) => r.lost)) {
        const [x, y] = [decode(run[against]), decode(run.values)];
        ends.push({ type: "scatter", mode: "markers", x: [x[x.length - 1]], y: [y[y.length - 1]], showlegend: false, name: plain(method.label), hovertemplate: `${where}, seed ${run.seed}: diverged`, marker: { symbol: "x", size: 9, color: colour(method) } });
      }
    }
    return [...areas, ...lines, ...ends];
  }

  /** A logarithmic axis with whole powers of ten where it spans several, plain numbers where it does not. */
  function logAxis(traces, axisName = "y") {
    let [low, high] = [Infinity, 0];
    for (const trace of traces) for (const value of trace[axisName]) if (value > 0) { low = Math.min(low, value); high = Math.max(high, value); }
    const ratio = high / low;
    if (ratio > 100) return { type: "log", dtick: Math.max(1, Math.ceil(Math.log10(ratio) / 7)), exponentformat: "power", tickfont: { size: 10 } };
    return { type: "log", tickformat: "~g", ...(ratio > 5 ? { dtick: "D2" } : {}) };
  }

  const scale = (log, traces, axisName) => (log ? logAxis(traces, axisName) : { type: "linear" });
  const dots = (x) => (x.length <= 40 ? { mode: "lines+markers", marker: { size: 4 } } : {});
  const along = (against) => (against === "bytes" ? { title: "bytes sent", tickformat: "~s", ticksuffix: "B", rangemode: "tozero" } : { title: "rounds", rangemode: "tozero" });

  function lastValues(quantity) {
    const parts = [];
    for (const entry of setting().curves[quantity.id] || []) {
      if (!isShown(entry.method)) continue;
      const values = decode((entry.mean || entry.runs[0]).values);
      parts.push(`${data.methods[entry.method].label} ${Number(values[values.length - 1]).toPrecision(4)}`);
    }
    return parts.length ? `Last values: ${parts.join("; ")}.` : "";
  }

  function curveCard(id, title, ids, against, { log = false, about = "" } = {}) {
    const found = ids.map((q) => setting().quantities.find((one) => one.id === q)).filter(Boolean);
    if (!found.length) return null;
    return {
      id, title, about, log, choices: found.map((q) => [q.id, q.title]),
      figure: (choice, isLogged) => {
        const quantity = setting().quantities.find((q) => q.id === choice);
        const traces = curveTraces(quantity, against, isLogged);
        return { traces, says: lastValues(quantity), layout: { xaxis: along(against), yaxis: { title: plain(quantity.axis), ...scale(isLogged, traces) } } };
      },
    };
  }

  function spreadCard() {
    const parts = Object.fromEntries(["p10", "p50", "p90"].map((p) => [p, `client_${setting().metric}_${p}`]));
    if (!Object.values(parts).every((name) => setting().curves[name])) return null;
    const curve = (name, index) => {
      const found = setting().curves[name].find((one) => one.method === index);
      return found.mean || found.runs[0];
    };
    const shown = () => setting().curves[parts.p50].map((entry) => entry.method).filter(isShown);
    const last = (name, index) => { const values = decode(curve(name, index).values); return values[values.length - 1]; };

    function atTheEnd() {
      const all = shown().reverse();
      const tips = { array: all.map((i) => last(parts.p90, i) - last(parts.p50, i)), arrayminus: all.map((i) => last(parts.p50, i) - last(parts.p10, i)) };
      return {
        traces: all.map((i, k) => ({
          type: "scatter", mode: "markers", showlegend: false, name: plain(data.methods[i].label), y: [plain(data.methods[i].label)], x: [last(parts.p50, i)], marker: { size: 11, color: colour(data.methods[i]) },
          error_x: { type: "data", symmetric: false, array: [tips.array[k]], arrayminus: [tips.arrayminus[k]], color: colour(data.methods[i]), thickness: 3, width: 0 },
          hovertemplate: `median %{x:.1f} %<br>10th percentile ${last(parts.p10, i).toFixed(1)} %, 90th ${last(parts.p90, i).toFixed(1)} %`,
        })),
        layout: { margin: { l: 110, r: 14, t: 10, b: 40 }, xaxis: { title: "accuracy of a client (%)", range: [-2, 102] }, yaxis: {} },
        says: all.map((i) => `${data.methods[i].label}: median ${last(parts.p50, i).toFixed(1)}, from ${last(parts.p10, i).toFixed(1)} to ${last(parts.p90, i).toFixed(1)} percent`).join("; "),
      };
    }

    function overRounds() {
      const areas = [], lines = [];
      for (const i of shown()) {
        const x = decode(curve(parts.p50, i).rounds);
        areas.push(band(data.methods[i], x, decode(curve(parts.p10, i).values), decode(curve(parts.p90, i).values)));
        lines.push(line(data.methods[i], { x, y: decode(curve(parts.p50, i).values), hovertemplate: "round %{x:,}<br>median %{y:.1f} %", ...dots(x) }));
      }
      return { traces: [...areas, ...lines], layout: { xaxis: along("rounds"), yaxis: { title: "accuracy of a client (%)" } } };
    }

    return {
      id: "spread", title: "Accuracy from client to client", choices: [["end", "At the end"], ["course", "Over rounds"]],
      about: "Median over all clients, each on its own training samples, and the span from the 10th to the 90th percentile.",
      figure: (choice) => (choice === "end" ? atTheEnd() : overRounds()),
    };
  }

  function curveCards() {
    const all = setting().quantities.map((q) => q.id);
    const metrics = all.filter((id) => !/^(test_loss|train_loss|norm_|delta_eps_|client_)/.test(id));
    const norms = all.filter((id) => id.startsWith("norm_"));
    const take = (...ids) => ids.filter((id) => norms.includes(id));
    const known = ["norm_params", "norm_params_before_dual", "norm_update", "norm_client_update", "norm_pseudo_gradient"];
    const others = norms.filter((id) => !known.includes(id) && id !== "norm_dual");
    const word = metrics.length === 1 && metrics[0] === "accuracy" ? "Accuracy" : "Metrics";
    return [
      curveCard("metric-rounds", `${word} over rounds`, metrics, "rounds"),
      curveCard("metric-bytes", `${word} over bytes sent`, metrics, "bytes"),
      curveCard("loss-rounds", "Loss over rounds", ["test_loss", "train_loss"], "rounds", { log: true }),
      curveCard("loss-bytes", "Loss over bytes sent", ["test_loss", "train_loss"], "bytes", { log: true }),
      curveCard("norm-model", "Norm of the model", take("norm_params", "norm_params_before_dual"), "rounds", { log: true, about: "A model that grows without end is the sign of a dual that explodes." }),
      curveCard("norm-update", "Norm of the update", take("norm_update", "norm_client_update", "norm_pseudo_gradient"), "rounds", { log: true }),
      curveCard("norm-dual", norms.includes("norm_dual") ? "Norm of the dual" : "Norms on the server", [...take("norm_dual"), ...others], "rounds", { log: true }),
      curveCard("delta-eps", "How far the ascent is off", all.filter((id) => id.startsWith("delta_eps_")), "rounds", { about: "Distance between the ascent used and the one compared with, in units of ρ: 0 is the same direction, 2 the opposite." }),
      spreadCard(),
    ].filter(Boolean);
  }

  // ---------------------------------------------------------------- geometry

  /** What to call measurements so that any two can be told apart. */
  function titled(list) {
    const several = (key) => new Set(list.map((one) => one[key])).size > 1;
    const [seeds, subjects, names] = ["seed", "subject", "name"].map(several);
    return list.map((one) => ({
      ...one,
      title: [data.methods[one.method].label, seeds ? `seed ${one.seed}` : "", subjects ? one.subject : "", names && !subjects ? one.name : ""].filter(Boolean).join(", "),
    }));
  }

  const surfaceKey = (surface) => `${surface.method}|${surface.seed}|${surface.name}`;

  function surfaceModes() {
    const all = titled(setting().surfaces);
    const first = all[0], last = all.filter((s) => s.method === all[all.length - 1]?.method)[0];
    return all.map((surface) => {
      const usual = surfaceKey(surface) === surfaceKey(last) ? "solid" : surfaceKey(surface) === surfaceKey(first) ? "net" : "off";
      return { ...surface, mode: state.surfaces[`${state.setting}|${surfaceKey(surface)}`] || usual };
    });
  }

  const onSurfaces = () => surfaceModes().filter((s) => s.mode !== "off" && isShown(s.method));

  function gridOf(surface, name) {
    const flat = decode(surface.grids[name]), width = surface.x.length;
    return surface.y.map((_, row) => Array.from(flat.subarray(row * width, (row + 1) * width)));
  }

  function netTrace(surface, z, common) {
    const x = [], y = [], height = [];
    const add = (row, column) => { x.push(surface.x[column]); y.push(surface.y[row]); height.push(z[row][column]); };
    const stop = () => { x.push(null); y.push(null); height.push(null); };
    surface.y.forEach((_, row) => { surface.x.forEach((__, column) => add(row, column)); stop(); });
    surface.x.forEach((_, column) => { surface.y.forEach((__, row) => add(row, column)); stop(); });
    return { type: "scatter3d", mode: "lines", x, y, z: height, connectgaps: false, line: { color: colour(data.methods[surface.method]), width: 2 }, ...common };
  }

  function surfaceTraces(name) {
    return onSurfaces().filter((surface) => surface.grids[name]).map((surface) => {
      const z = gridOf(surface, name), tone = colour(data.methods[surface.method]);
      const common = { name: plain(surface.title), showlegend: true, hovertemplate: `(%{x:.2f}, %{y:.2f})<br>${plain(name)} %{z:.4~g}` };
      if (surface.mode === "net") return netTrace(surface, z, common);
      return {
        type: "surface", x: surface.x, y: surface.y, z, showscale: false, opacity: 0.93, ...common,
        colorscale: [[0, mixed(tone, "#000000", 0.25)], [0.5, tone], [1, mixed(tone, "#ffffff", 0.6)]],
        lighting: { ambient: 0.7, diffuse: 0.6, specular: 0.1, roughness: 0.8 },
        contours: { x: { highlight: false }, y: { highlight: false }, z: { highlight: false } },
      };
    });
  }

  function surfacePicker(changed) {
    const line_of = (method) => el("svg", { viewBox: "0 0 24 10", "aria-hidden": "true" }, el("line", { x1: 0, x2: 24, y1: 5, y2: 5, stroke: colour(method), "stroke-width": 5 }));
    return el("fieldset", { class: "surfaces" }, el("legend", { class: "unseen", text: "Surfaces" }),
      ...surfaceModes().filter((s) => isShown(s.method)).map((surface) => {
        const select = el("select", { onchange: (event) => {
          state.surfaces[`${state.setting}|${surfaceKey(surface)}`] = event.target.value;
          changed();
          if (charts.has("contours")) refresh(charts.get("contours"));
        } }, ...["solid", "net", "off"].map((mode) => el("option", { value: mode, text: mode, selected: mode === surface.mode })));
        return el("label", {}, line_of(data.methods[surface.method]), surface.title, select);
      }));
  }

  function surfaceCard() {
    const all = setting().surfaces;
    if (!all.length) return null;
    const names = [...new Set(all.flatMap((s) => Object.keys(s.grids)))];
    return {
      id: "surfaces", title: "Loss around the models", wide: true, tall: true, scene: true, log: false, extra: surfacePicker,
      about: `On a plane of two ${[...new Set(all.map((s) => s.directions))].join(" or ")} directions. Drag to turn; click, then scroll to zoom.`,
      choices: names.map((name) => [name, name]),
      figure: (name, log) => ({
        traces: surfaceTraces(name), empty: "Every surface is switched off.",
        says: `${onSurfaces().length} surfaces: ${onSurfaces().map((s) => `${s.title} (${s.mode})`).join("; ")}.`,
        layout: {
          margin: { l: 0, r: 0, t: 0, b: 0 },
          scene: {
            xaxis: { title: { text: "first direction" } }, yaxis: { title: { text: "second direction" } },
            zaxis: { title: { text: plain(name) }, type: log ? "log" : "linear" }, aspectmode: "manual", aspectratio: { x: 1, y: 1, z: 0.75 },
          },
        },
      }),
    };
  }

  function contourCard() {
    if (!setting().surfaces.length) return null;
    const names = [...new Set(setting().surfaces.flatMap((s) => Object.keys(s.grids)))];
    return {
      id: "contours", title: "The same from above", wide: true, log: true, choices: names.map((name) => [name, name]), about: "One colour scale for all.",
      figure: (name, log) => {
        const surfaces = onSurfaces().filter((s) => s.grids[name]).slice(0, 6);
        const heights = surfaces.map((s) => gridOf(s, name).map((row) => row.map((v) => (log ? (v > 0 ? Math.log10(v) : NaN) : v))));
        const flat = heights.flat(2).filter(Number.isFinite);
        const [low, high] = flat.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
        const layout = { margin: { l: 40, r: 10, t: 30, b: 36 }, annotations: [] };
        const stacked = narrow();  // beside each other there is no room for their names
        const few = stacked ? { nticks: 4, tickangle: 0 } : {};
        const gap = stacked ? 0.25 / surfaces.length : 0.05, width = (1 - gap * (surfaces.length - 1)) / surfaces.length;
        const traces = surfaces.map((surface, i) => {
          const n = i ? i + 1 : "", start = i * (width + gap), whole = [0, 1];
          const across = stacked ? whole : [start, start + width], up = stacked ? [1 - start - width, 1 - start] : whole;
          layout[`xaxis${n}`] = { domain: across, anchor: `y${n}`, constrain: "domain", ...few };
          layout[`yaxis${n}`] = { domain: up, anchor: `x${n}`, scaleanchor: `x${n}`, constrain: "domain", ...few };
          layout.annotations.push({ text: plain(surface.title), x: 0.5, y: 1, yanchor: "bottom", yshift: 4, xref: `x${n} domain`, yref: `y${n} domain`, showarrow: false, font: { size: 12, color: css("--ink") } });
          return {
            type: "contour", x: surface.x, y: surface.y, z: heights[i], xaxis: `x${n}`, yaxis: `y${n}`, showlegend: false, name: plain(surface.title), ncontours: 18, zmin: low, zmax: high, colorscale: "Viridis",
            line: { width: 0.6, color: faded(dark() ? "#ffffff" : "#000000", 0.35) }, showscale: i === surfaces.length - 1, colorbar: { title: { text: log ? `log₁₀ ${plain(name)}` : plain(name), side: "right" }, thickness: 12, outlinewidth: 0 },
            customdata: gridOf(surface, name), hovertemplate: `(%{x:.2f}, %{y:.2f})<br>${plain(name)} %{customdata:.4~g}`,
          };
        });
        return { traces, layout, height: stacked ? 90 + 230 * surfaces.length : null, empty: "Every surface is switched off.", says: `Contour maps of ${surfaces.map((s) => s.title).join("; ")}.` };
      },
    };
  }

  function interpolationCard() {
    const all = setting().interpolations;
    if (!all.length) return null;
    const names = [...new Set(all.flatMap((one) => Object.keys(one.curves)))];
    return {
      id: "interpolation", title: "On the line between two models", log: false, choices: names.map((name) => [name, name]),
      about: "0 is the first model, 1 the second. The barrier is how far, between them, the loss rises above the straight line between their losses.",
      figure: (name, log) => {
        const several = (key) => new Set(all.map((one) => one[key])).size > 1;
        const [seeds, subjects] = ["seed", "subject"].map(several);
        const title = (one) => plain(`${data.methods[one.method].label}${seeds ? `, seed ${one.seed},` : ""} to ${one.to}`) + (subjects ? `${narrow() ? "<br>" : ", "}${plain(one.subject)}` : "") + (name === "loss" && one.barrier !== null ? ` (barrier ${Number(one.barrier.toPrecision(2))})` : "");
        const traces = all.filter((one) => isShown(one.method) && one.curves[name]).map((one, i) => line(data.methods[one.method], {
          name: title(one), x: one.coefficients, y: one.curves[name],
          line: { color: colour(data.methods[one.method]), width: 2, dash: ["solid", "dash", "dot", "dashdot"][i % 4] }, hovertemplate: "%{x:.2f}<br>%{y:.4~g}",
        }));
        const edge = (x) => ({ type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: { color: css("--line"), width: 1, dash: "dot" } });
        return { traces, layout: { shapes: [edge(0), edge(1)], xaxis: { title: "first model (0) to second (1)" }, yaxis: { title: plain(name), ...scale(log, traces) }, showlegend: traces.length <= 6, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 } } };
      },
    };
  }

  function mean(values) { return values.reduce((a, b) => a + b, 0) / values.length; }
  function deviation(values) {
    const middle = mean(values);
    return Math.sqrt(values.reduce((sum, v) => sum + (v - middle) ** 2, 0) / (values.length - 1));
  }

  function eigenvalueCard() {
    const all = setting().eigenvalues;
    if (!all.length) return null;
    const kinds = [...new Set(all.map((one) => `${one.subject}, ${one.how}`))];
    return {
      id: "eigenvalues", title: "Largest eigenvalues of the Hessian", log: false, choices: kinds.map((kind) => [kind, kind]),
      about: "Mean over seeds; whiskers: sample standard deviation over seeds (ddof = 1), with one seed the spread over subsets of the data, or else the residual.",
      figure: (kind, log) => {
        const traces = [];
        for (const index of setting().methods.filter(isShown)) {
          const found = all.filter((one) => one.method === index && `${one.subject}, ${one.how}` === kind && one.top);
          if (!found.length) continue;
          const method = data.methods[index], count = Math.min(...found.map((one) => one.top));
          const columns = Array.from({ length: count }, (_, k) => found.map((one) => one.values[k]));
          traces.push({
            type: "bar", name: plain(method.label), x: columns.map((_, k) => `λ${"₁₂₃₄₅₆₇₈₉"[k] || ` ${k + 1}`}`), y: columns.map(mean),
            error_y: { type: "data", array: found.length > 1 ? columns.map(deviation) : found[0].errors.slice(0, count), color: css("--ink"), thickness: 1.2, width: 3 },
            marker: { color: colour(method), pattern: hatched(PATTERNS[method.stroke]) }, hovertemplate: "%{x}: %{y:.4~g}",
          });
        }
        return { traces, layout: { barmode: "group", xaxis: {}, yaxis: { title: "eigenvalue", ...scale(log, traces) } },
          says: traces.map((t) => `${t.name} ${Number(t.y[0]).toPrecision(3)}`).join("; ") };
      },
    };
  }

  const hatched = (shape) => ({ shape, fillmode: "overlay", fgcolor: css("--raised"), fgopacity: 0.75, size: 6, solidity: 0.25 });
  const PATTERNS = { solid: "", dash: "/", dot: ".", dashdot: "x", longdash: "-" };

  function densityCard() {
    const all = setting().densities;
    if (!all.length) return null;
    return {
      id: "densities", title: "Spectral density of the Hessian", log: true, about: "By stochastic Lanczos quadrature; each point of mass drawn as a narrow bell.",
      figure: (_, log) => {
        const traces = titled(all).filter((one) => isShown(one.method)).map((one) => line(data.methods[one.method], { name: plain(one.title), x: decode(one.at), y: decode(one.values).map((v) => (log && v < 1e-9 ? NaN : v)), hovertemplate: "λ = %{x:.3~g}<br>%{y:.3~g}" }));
        return { traces, layout: { xaxis: { title: "eigenvalue λ" }, yaxis: { title: "density", ...scale(log, traces) } } };
      },
    };
  }

  function localCard() {
    const all = setting().locals;
    if (!all.length) return null;
    return {
      id: "locals", title: "Local models against the global one", log: true, about: "λ₁ of each client's model after its local training, on its own data and on everyone's; and of the global model.",
      figure: (_, log) => {
        const shown = all.filter((one) => isShown(one.method));
        const names = setting().methods.filter((i) => shown.some((one) => one.method === i));
        const jitter = (one, side) => names.indexOf(one.method) + side + 0.1 * ((one.client * 0.618034) % 1 - 0.5);
        const points = (key, title, side, symbol) => ({
          type: "scatter", mode: "markers", name: title, x: shown.map((one) => jitter(one, side)), y: shown.map((one) => one[key]), customdata: shown.map((one) => one.client),
          marker: { symbol, size: 9, color: shown.map((one) => colour(data.methods[one.method])), line: { width: 1, color: css("--raised") } }, hovertemplate: "client %{customdata}<br>λ₁ = %{y:.4~g}",
        });
        const beside = (one) => one.final && one.top && shown.some((local) => local.method === one.method && local.seed === one.seed && local.on === one.on);
        const globals = setting().eigenvalues.filter(beside).map((one) => [names.indexOf(one.method), one.values[0]]);
        const traces = shown.length ? [points("local", "local model, own data", -0.2, "circle"), points("union", "local model, all data", 0.2, "diamond")] : [];
        if (shown.length && globals.length) traces.push({ type: "scatter", mode: "markers", name: "global model, all data", x: globals.map(([x]) => x), y: globals.map(([, y]) => y), marker: { symbol: "line-ew", size: 22, line: { width: 3, color: css("--ink") } }, hovertemplate: "global<br>λ₁ = %{y:.4~g}" });
        return { traces, layout: { showlegend: true, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, xaxis: { tickvals: names.map((_, k) => k), ticktext: names.map((i) => plain(data.methods[i].label)), range: [-0.6, names.length - 0.4] }, yaxis: { title: "λ₁", ...scale(log, traces) } } };
      },
    };
  }

  // ---------------------------------------------------------------- data and costs

  function divisionCard() {
    const found = setting().federation;
    if (!found || !found.classes.length || !found.counts.length) return null;
    const some = found.shown.length < found.clients ? `, ${found.shown.length} of ${found.clients.toLocaleString("en")} shown` : "";
    return {
      id: "division", title: "Which client has what", wide: true, about: `Share of a client's samples in each class${some}; empty where it has none.`,
      figure: () => {
        const z = found.classes.map(() => new Array(found.shown.length).fill(null));
        const counts = found.classes.map(() => new Array(found.shown.length).fill(0));
        found.counts.forEach((owned, client) => {
          const total = owned.reduce((sum, value, i) => sum + (i % 2 ? value : 0), 0) || 1;
          for (let i = 0; i < owned.length; i += 2) { z[owned[i]][client] = 100 * owned[i + 1] / total; counts[owned[i]][client] = owned[i + 1]; }
        });
        const few = found.classes.length <= 30;
        return {
          traces: [{
            type: "heatmap", x: found.shown.map((_, i) => i), y: found.classes.map((_, i) => i), z, customdata: counts, colorscale: dark() ? "Viridis" : VIRIDIS_DOWN, zmin: 0, zmax: z.flat().reduce((most, v) => Math.max(most, v ?? 0), 0) || 1, xgap: found.shown.length <= 120 ? 1 : 0, ygap: few ? 1 : 0,
            colorbar: { title: { text: "% of the client", side: "right" }, thickness: 12, outlinewidth: 0 }, hoverongaps: false, text: found.classes.map((name) => found.shown.map((client) => `client ${client}, ${plain(name)}`)), hovertemplate: "%{text}<br>%{customdata} samples, %{z:.1f} %<extra></extra>",
          }],
          layout: { xaxis: { title: "client", ...clientTicks(found), showgrid: false }, yaxis: { title: few ? "" : "class", ...(few ? { tickvals: found.classes.map((_, i) => i), ticktext: found.classes.map((name) => plain(name.length > 18 ? `${name.slice(0, 17)}…` : name)) } : {}), autorange: "reversed", showgrid: false } },
          says: `${found.clients} clients and ${found.classes.length} classes.`,
        };
      },
    };
  }

  const VIRIDIS_DOWN = [[0, "#fde725"], [0.25, "#5ec962"], [0.5, "#21918c"], [0.75, "#3b528b"], [1, "#440154"]];

  function clientTicks(found) {
    const step = [1, 2, 5, 10, 20, 50, 100].find((n) => found.shown.length / n <= (narrow() ? 10 : 20)) || 200;
    const places = [...found.shown.keys()].filter((i) => i % step === 0);
    return { tickvals: places, ticktext: places.map((i) => String(found.shown[i])) };
  }

  function perClientCard(id, title, axisTitle, values, hover, { about, most } = {}) {
    const found = setting().federation;
    if (!found || found.shown.length < 2) return null;
    const heights = values(found);
    if (!heights.length) return null;
    const order = Array.from(heights.keys()).sort((a, b) => heights[b] - heights[a]);
    return {
      id, title, about,
      figure: () => ({
        traces: [{ type: "bar", x: order.map((_, i) => i), y: order.map((i) => heights[i]), customdata: order.map((i) => found.shown[i]), marker: { color: css("--accent") }, hovertemplate: `client %{customdata}<br>${hover}<extra></extra>` }],
        layout: { bargap: order.length > 60 ? 0 : 0.15, xaxis: { title: "clients, sorted", showticklabels: false, ticks: "" }, yaxis: { title: axisTitle, rangemode: "tozero", ...(most ? { range: [0, 1.08 * most] } : {}) },
          ...(most ? { shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: most, y1: most, line: { color: css("--soft"), width: 1, dash: "dot" } }] } : {}) },
      }),
    };
  }

  function vectorCard() {
    const all = setting().vectors.filter((one) => Object.keys(one.bytes).length);
    if (!all.length) return null;
    const names = [...new Set(all.flatMap((one) => Object.keys(one.bytes)))].sort();
    return {
      id: "vectors", title: "What travels in a round", about: "Bytes of each named vector over the whole cohort, down to the clients and up from them.",
      figure: () => {
        const shown = all.filter((one) => isShown(one.method)).reverse();
        const tones = data.palette[dark() ? "dark" : "light"];
        return {
          traces: shown.length ? names.map((name, i) => ({
            type: "bar", orientation: "h", name: plain(name.replace(".", ": ")), y: shown.map((one) => plain(data.methods[one.method].label)), x: shown.map((one) => one.bytes[name] || 0),
            marker: { color: tones[i % tones.length], pattern: hatched(name.startsWith("up") ? "/" : "") }, customdata: shown.map((one) => bytes(one.bytes[name] || 0)), hovertemplate: "%{y}<br>%{customdata} a round",
          })) : [],
          layout: { barmode: "stack", margin: { l: 110, r: 14, t: 10, b: 40 }, showlegend: true, legend: { orientation: "h", traceorder: "normal", y: 1.02, yanchor: "bottom", x: 0 }, xaxis: { title: "bytes a round", tickformat: "~s", ticksuffix: "B" }, yaxis: {} },
          says: shown.map((one) => `${data.methods[one.method].label} ${bytes(Object.values(one.bytes).reduce((a, b) => a + b, 0))}`).join("; "),
        };
      },
    };
  }

  function timeCard() {
    const all = setting().seconds;
    if (!all.length) return null;
    return {
      id: "seconds", title: "Time of a round", log: false, about: "Median over all rounds and seeds; whiskers reach from the 10th to the 90th percentile.",
      figure: (_, log) => {
        const shown = all.filter((one) => isShown(one.method)).reverse();
        return {
          traces: shown.length ? [{
            type: "bar", orientation: "h", y: shown.map((one) => plain(data.methods[one.method].label)), x: shown.map((one) => one.median), marker: { color: shown.map((one) => colour(data.methods[one.method])) },
            error_x: { type: "data", symmetric: false, array: shown.map((one) => one.high - one.median), arrayminus: shown.map((one) => one.median - one.low), color: css("--ink"), thickness: 1.2, width: 3 }, hovertemplate: "%{y}<br>%{x:.3~s}s<extra></extra>",
          }] : [],
          layout: { margin: { l: 110, r: 14, t: 10, b: 40 }, xaxis: { title: "seconds", type: log ? "log" : "linear", rangemode: "tozero" }, yaxis: {} },
          says: shown.map((one) => `${data.methods[one.method].label} ${one.median.toPrecision(3)} s`).join("; "),
        };
      },
    };
  }

  // ---------------------------------------------------------------- the page

  const content = (id) => document.querySelector(`#${id} > .content`);

  /** Rebuild a part only if what it shows has changed, so that reading and selecting are not disturbed. */
  const lastShown = {};
  function whenChanged(key, value, build) {
    const text = JSON.stringify(value);
    if (lastShown[key] === text) return;
    lastShown[key] = text;
    build();
  }

  function renderHead() {
    const count = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
    const states = {};
    for (const run of data.runs) states[run.status] = (states[run.status] || 0) + 1;
    const sets = [...new Set(data.settings.map((s) => s.name))];
    document.title = data.title;
    byId("heading").textContent = sets.length === 1 ? sets[0] : data.title.replace(" · fedgloss", "");
    byId("lead").textContent = data.runs.length
      ? `${count(data.runs.length, "run")} (${Object.entries(states).map(([name, n]) => `${n} ${name}`).join(", ")}): ${count(data.methods.length, "method")} in ${count(data.settings.length, "setting")}.`
      : "No runs yet.";
    byId("colophon").textContent = `Written by fedgloss ${data.version} on ${new Date(data.made).toISOString().slice(0, 16).replace("T", " at ")} UTC. ${data.live ? "The server on this machine keeps it fresh; no other is asked." : "This file is complete: it asks nothing of any network."}`;
    const sections = [...document.querySelectorAll("main section")].filter((section) => !section.hidden);
    whenChanged("contents", sections.map((s) => s.id), () => byId("contents").replaceChildren(...sections.map((section) => el("li", {}, el("a", { href: `#${section.id}`, text: section.querySelector("h2").textContent })))));
    whenChanged("skipped", data.skipped, () => byId("skipped").replaceChildren(...(data.skipped.length ? [
      el("div", { class: "notice", role: "note" }, el("strong", { text: "Left out:" }),
        el("ul", {}, ...data.skipped.map(([path, reason]) => el("li", {}, el("code", { text: path }), `: ${reason}`))))] : [])));
  }

  function renderOverview() {
    whenChanged("overview", [data.first, data.tables.across, data.settings.map((s) => [s.name, s.facts, s.tables])], () => {
      const parts = [...data.first.map((table) => tableBlock(table)), tableBlock(data.tables.across)];
      for (const one of data.settings) {
        const first = tableBlock(one.tables.results);
        first.querySelector(".head").after(facts(one.facts));
        parts.push(first, tableBlock(one.tables.comparisons), tableBlock(one.tables.curvature_comparisons));
      }
      content("overview").replaceChildren(...parts.filter(Boolean));
    });
  }

  function renderControls() {
    const parts = [];
    if (data.settings.length > 1) {
      const select = el("select", { id: "setting", onchange: (event) => { state.setting = event.target.value; renderControls(); renderFigures(); } },
        ...data.settings.map((s) => el("option", { value: s.name, text: s.name, selected: s.name === setting().name })));
      parts.push(el("span", {}, el("label", { for: "setting", text: "Setting " }), select));
    }
    if (data.settings.length) {
      const focused = document.activeElement?.dataset?.method;
      const keys = setting().methods.map((i) => data.methods[i]).map((method) => el("li", {}, el("button", {
        type: "button", class: "key", "data-method": method.label, "aria-pressed": String(!state.hidden.has(method.label)), title: "Click to switch, double-click for this one alone",
        onclick: () => { state.hidden.has(method.label) ? state.hidden.delete(method.label) : state.hidden.add(method.label); legendChanged(); },
        ondblclick: () => { state.hidden = new Set(data.methods.map((m) => m.label).filter((label) => label !== method.label)); legendChanged(); },
      }, el("svg", { viewBox: "0 0 36 12", "aria-hidden": "true" }, el("line", { x1: 1, x2: 35, y1: 6, y2: 6, stroke: colour(method), "stroke-width": 3, "stroke-dasharray": DASHES[method.stroke] })), method.label)));
      parts.push(el("ul", { class: "legend", "aria-label": "Methods shown" }, ...keys));
      parts.push(el("span", { class: "tools only-screen" },
        el("button", { type: "button", id: "all-methods", text: "All", "aria-label": "Show all methods", onclick: () => { state.hidden.clear(); legendChanged(); } }),
        el("button", { type: "button", id: "every-seed", text: "Every seed", "aria-pressed": String(state.everySeed), title: "Each seed's own curve instead of mean ± sample standard deviation",
          onclick: () => { state.everySeed = !state.everySeed; byId("every-seed").setAttribute("aria-pressed", String(state.everySeed)); redraw(); } })));
      byId("controls").replaceChildren(...parts);
      if (focused) byId("controls").querySelector(`[data-method="${CSS.escape(focused)}"]`)?.focus();
    } else byId("controls").replaceChildren();
  }

  const DASHES = { solid: null, dash: "8 4", dot: "2 4", dashdot: "8 4 2 4", longdash: "14 5" };

  function legendChanged() {
    for (const button of byId("controls").querySelectorAll(".key")) button.setAttribute("aria-pressed", String(!state.hidden.has(button.dataset.method)));
    if (charts.has("surfaces")) fillControls(charts.get("surfaces"));
    redraw();
    say(`${shownMethods().length} methods shown`);
  }

  function renderFigures() {
    const any = data.settings.length > 0;
    for (const id of ["curves", "geometry", "data", "costs"]) byId(id).hidden = !any;
    if (!any) return;
    arrange(content("curves"), curveCards());
    arrange(content("geometry"), [surfaceCard(), contourCard(), eigenvalueCard(), densityCard(), interpolationCard(), localCard()].filter(Boolean));
    after("geometry", tableBlock(setting().tables.measures) || (content("geometry").children.length ? null : el("p", { class: "hint" }, "Nothing measured yet. ", el("code", { text: "fedgloss flatness RUN" }), ", ", el("code", { text: "fedgloss landscape RUN" }), " and ", el("code", { text: "fedgloss interpolate RUN RUN" }), " fill this section.")));
    const division = [
      divisionCard(),
      perClientCard("sizes", "Samples of each client", "samples", (f) => f.sizes, "%{y:,} samples"),
      perClientCard("entropy", "How mixed each client is", "entropy (nats)", (f) => decode(f.entropies), "entropy %{y:.3f}", { about: "Entropy of a client's class shares: 0 is one class, the dotted line an even mixture of all.", most: Math.log(setting().federation?.classes.length || 1) }),
    ].filter(Boolean);
    byId("data").hidden = !division.length;
    arrange(content("data"), division);
    arrange(content("costs"), [vectorCard(), timeCard()].filter(Boolean));
    after("costs", tableBlock(setting().tables.costs));
  }

  /** A table below a section's figures. */
  function after(id, node) {
    byId(id).querySelector(":scope > .after")?.remove();
    if (node) byId(id).append(el("div", { class: "after" }, node));
  }

  function renderProvenance() {
    whenChanged("provenance", [data.tables, data.runs.map((r) => ({ ...r, written: 0 }))], () => {
      const open = new Set([...document.querySelectorAll("details.run[open]")].map((node) => node.dataset.run));
      const differing = new Set(data.differing);
      const runs = data.runs.map((run) => {
        const config = el("pre", { tabindex: 0, role: "region", "aria-label": `Configuration of ${run.name}` });
        run.config.forEach(([key, value]) => { const text = `${key} = ${value}`; config.append(differing.has(key) ? el("mark", { text }) : text, "\n"); });
        return el("details", { class: "run", "data-run": run.name, open: open.has(run.name) },
          el("summary", {}, el("code", { text: run.name }), el("span", { class: `state ${run.status}`, text: `${run.status}, ${run.rounds} rounds` }), run.note ? el("span", { text: run.note }) : null),
          el("div", {}, facts([
            ...(run.note ? [["Note", run.note]] : []),
            ...(run.divergence ? [["Diverged", run.divergence]] : []),
            ["Do it again", el("code", { text: run.redo })],
            ...(run.started_by ? [["Started with", el("code", { text: `fedgloss ${run.started_by}` })]] : []),
            ["Seed", String(run.seed)],
            ...(run.protocol ? [["Protocol", run.protocol]] : []),
            ...(run.measured.length ? [["Measured", run.measured.join(", ")]] : []),
          ]), config));
      });
      const parts = [tableBlock(data.tables.differences, { tall: true }), tableBlock(data.tables.shared, { tall: true }), tableBlock(data.tables.machines)];
      if (runs.length) parts.push(el("div", { class: "each" }, el("h3", { text: "Each run" }), el("p", { class: "hint", text: "The resolved configuration; what differs between runs is marked." }), el("div", { class: "runs" }, ...runs)));
      content("provenance").replaceChildren(...parts.filter(Boolean));
    });
  }

  function render() {
    if (!data.settings.some((s) => s.name === state.setting)) state.setting = data.settings[0]?.name ?? null;
    renderOverview();
    renderControls();
    renderFigures();
    renderProvenance();
    renderHead();
  }

  // ---------------------------------------------------------------- paper

  addEventListener("beforeprint", () => {
    printing = root.dataset.theme;  // the class gives the page its paper width now, while figures can still be drawn to it
    root.dataset.theme = "light";
    root.classList.add("printing");
    renderControls();
    for (const chart of charts.values()) draw(chart);
  });
  addEventListener("afterprint", () => {
    root.classList.remove("printing");
    root.dataset.theme = printing;
    printing = null;
    renderControls();
    redraw();
  });

  // ---------------------------------------------------------------- news, when a server is behind the page

  let tag = null, heard = Date.now();

  async function ask() {
    try {
      const answer = await fetch("data.json", { cache: "no-cache" });
      if (!answer.ok) throw new Error(String(answer.status));
      heard = Date.now();
      if (answer.headers.get("ETag") !== tag) {
        tag = answer.headers.get("ETag");
        data = await answer.json();
        render();
      }
    } catch { /* shown below */ }
    const lost = Date.now() - heard > 3000 + 3000 * data.live;
    if (lost !== byId("live").classList.contains("lost")) say(lost ? "The server has gone" : "The server is back");
    byId("live").classList.toggle("lost", lost);
    const newest = Math.max(0, ...data.runs.map((run) => run.written));
    const text = lost ? "The server has gone" : newest ? `Live, last record ${ago(Date.now() / 1000 - newest)}` : "Live, waiting for runs";
    if (byId("live").textContent !== text) byId("live").textContent = text;
    setTimeout(ask, 1000 * data.live);
  }

  function ago(seconds) {
    if (seconds < 10) return "just now";
    return seconds < 120 ? `${Math.round(seconds / 10) * 10} s ago` : seconds < 7200 ? `${Math.round(seconds / 60)} min ago` : `${Math.round(seconds / 3600)} h ago`;
  }

  applyTheme();
  render();
  if (data.live) { byId("live").hidden = false; setTimeout(ask, 1000 * data.live); }
  root.dataset.ready = "yes";
})();
