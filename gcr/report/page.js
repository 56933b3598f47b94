"use strict";
(() => {
  const LABELS = { scenario: "scenario", regime: "regime", buffer: "K", method: "method" };
  const POLL_MILLISECONDS = 2000;
  const ROWS = 200; // of a table at first, and more with each look at its end
  const filters = document.getElementById("filters");
  const picked = { text: "", scenario: "", regime: "", buffer: "", method: "" };
  const sorts = new Map(); // name of a table -> { column, ascending }
  let facets = [];

  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const make = (tag, values = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), values);
    element.append(...children);
    return element;
  };

  // --- sorting ---------------------------------------------------------------------------------

  function makeSortable(table) {
    all("thead th", table).forEach((th, column) => {
      const button = make("button", { type: "button", textContent: th.textContent });
      button.addEventListener("click", () => {
        const before = sorts.get(table.dataset.name);
        const again = before && before.column === th.textContent;
        sorts.set(table.dataset.name, { column: th.textContent, ascending: again ? !before.ascending : true });
        sort(table);
      });
      th.replaceChildren(button);
    });
    sort(table);
    more.observe(table.parentElement);
  }

  // --- of a long table, rows come as one scrolls to them ------------------------------------------

  const limits = new Map(); // name of a table -> rows shown
  const more = new IntersectionObserver(entries => entries.forEach(({ target, isIntersecting }) => {
    const table = target.querySelector("table");
    if (!isIntersecting || target.getBoundingClientRect().bottom > 2 * innerHeight) return;
    if (table && table.querySelector("tr.later")) {
      limits.set(table.dataset.name, (limits.get(table.dataset.name) || ROWS) + ROWS);
      showFirst(table);
      more.unobserve(target); // and again, since it may still be in sight
      more.observe(target);
    }
  }), { rootMargin: "100% 0px", threshold: Array.from({ length: 101 }, (_, i) => i / 100) });

  function showFirst(table) {
    const limit = limits.get(table.dataset.name) || ROWS;
    let shown = 0;
    all("tbody tr", table).forEach(row => {
      shown += !row.classList.contains("out");
      row.classList.toggle("later", shown > limit);
    });
  }

  function sort(table) {
    const wanted = sorts.get(table.dataset.name);
    if (!wanted) return;
    const heads = all("thead th", table);
    const column = heads.findIndex(th => th.textContent === wanted.column);
    heads.forEach((th, c) =>
      c === column ? th.setAttribute("aria-sort", wanted.ascending ? "ascending" : "descending") : th.removeAttribute("aria-sort"));
    if (column < 0) return;
    const sign = wanted.ascending ? 1 : -1;
    const keyed = all("tbody tr", table).map(row => {
      const cell = row.cells[column];
      const text = cell.textContent.trim();
      return { row, text, number: "v" in cell.dataset ? Number(cell.dataset.v) : null, missing: text === "–" || text === "missing" };
    });
    keyed.sort((a, b) => {
      if (a.missing !== b.missing) return a.missing ? 1 : -1; // what is missing comes last either way
      if (a.number !== null && b.number !== null) return sign * (a.number - b.number);
      return sign * a.text.localeCompare(b.text, undefined, { numeric: true });
    });
    table.tBodies[0].append(...keyed.map(one => one.row));
    showFirst(table);
  }

  // --- filters ---------------------------------------------------------------------------------

  function fits(facet) {
    const words = picked.text.toLowerCase().split(/\s+/).filter(Boolean);
    const text = Object.values(facet).join(" ").toLowerCase();
    return words.every(word => text.includes(word)) && Object.keys(LABELS).every(key => !picked[key] || facet[key] === picked[key]);
  }

  function filter() {
    const shown = facets.map(fits);
    all("[data-f]").forEach(element => element.classList.toggle("out", !shown[element.dataset.f]));
    all("section.group").forEach(section => {
      const empty = !section.querySelector("[data-f]:not(.out)");
      section.classList.toggle("out", empty);
      all("[data-section]").filter(link => link.dataset.section === section.id).forEach(link => link.classList.toggle("out", empty));
    });
    all("table.rows").forEach(showFirst);
    const count = rows => rows.filter(row => !row.classList.contains("out")).length;
    const rows = all("table.results tbody tr");
    const status = filters.querySelector("output");
    if (status) status.textContent = `${count(rows)} of ${rows.length} rows`;
  }

  /** The controls: a text, and a choice for each facet that has several values. */
  function makeFilters() {
    const kept = filters.contains(document.activeElement) ? document.activeElement.name : null;
    const text = filters.querySelector("input") || make("input", { type: "search", name: "text", placeholder: "words to look for" });
    const choices = Object.keys(LABELS).flatMap(key => {
      const values = [...new Set(facets.map(facet => facet[key]))];
      if (picked[key] && !values.includes(picked[key])) picked[key] = "";
      if (values.length < 2) return [];
      values.sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
      const options = ["", ...values].map(value => make("option", { value, textContent: value || "all", selected: value === picked[key] }));
      return [make("label", {}, LABELS[key], make("select", { name: key }, ...options))];
    });
    const clear = make("button", { type: "reset", textContent: "clear" });
    const status = make("output", {});
    filters.replaceChildren(make("label", {}, "filter", text), ...choices, clear, status);
    filters.hidden = facets.length < 2;
    if (kept) filters.elements[kept]?.focus();
  }

  filters.addEventListener("input", event => {
    picked[event.target.name] = event.target.value;
    filter();
  });
  filters.addEventListener("submit", event => event.preventDefault());
  filters.addEventListener("reset", event => {
    event.preventDefault();
    Object.keys(picked).forEach(key => { picked[key] = ""; });
    filters.querySelector("input").value = "";
    makeFilters();
    filter();
  });

  // --- a curve under the pointer stands out -----------------------------------------------------

  document.addEventListener("pointerover", event => {
    const under = event.target.closest?.(".charts [data-f]");
    all(".charts.dim").forEach(charts => charts.classList.remove("dim"));
    all(".lit").forEach(element => element.classList.remove("lit"));
    if (!under) return;
    const charts = under.closest(".charts");
    charts.classList.add("dim");
    all("[data-f]", charts).filter(one => one.dataset.f === under.dataset.f).forEach(one => one.classList.add("lit"));
  });

  // --- a live page takes over what is new, and keeps what the reader has set -------------------

  function takeOver(page) {
    const open = new Map(all("main details[id]").map(details => [details.id, details.open]));
    const focused = document.activeElement?.closest?.("th");
    const where = focused && { name: focused.closest("table").dataset.name, column: focused.textContent };
    const sideways = new Map(all("main table.rows").map(table => [table.dataset.name, table.parentElement.scrollLeft]));
    document.querySelector("main").replaceWith(page.querySelector("main"));
    all("main details[id]").forEach(details => { if (open.has(details.id)) details.open = open.get(details.id); });
    document.body.dataset.version = page.body.dataset.version;
    start();
    all("main table.rows").forEach(table => {
      table.parentElement.scrollLeft = sideways.get(table.dataset.name) || 0;
      if (where && table.dataset.name === where.name)
        all("th", table).find(th => th.textContent === where.column)?.querySelector("button").focus({ preventScroll: true });
    });
  }

  async function look() {
    let problem = "";
    try {
      const version = await (await fetch("version")).text();
      if (version !== document.body.dataset.version) {
        const answer = await fetch("./");
        if (!answer.ok) throw new Error(answer.statusText);
        takeOver(new DOMParser().parseFromString(await answer.text(), "text/html"));
      }
    } catch {
      problem = "The server does not answer; this page no longer changes.";
    }
    const status = document.getElementById("connection");
    if (status && status.textContent !== problem) status.textContent = problem;
    setTimeout(look, POLL_MILLISECONDS);
  }

  function start() {
    facets = JSON.parse(document.getElementById("facets").textContent);
    all("table.rows").forEach(makeSortable);
    makeFilters();
    filter();
  }

  start();
  if (document.body.dataset.version) setTimeout(look, POLL_MILLISECONDS);
})();
