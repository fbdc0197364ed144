"use strict";
// Sorting, filters and the color theme. Without this script, the page shows the same content without these controls.
(() => {
  const FILTERED_FROM = 12;

  const darkButton = document.querySelector("[data-theme-button]");
  let isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const showTheme = () => darkButton.setAttribute("aria-pressed", String(isDark));
  darkButton.hidden = false;
  darkButton.addEventListener("click", () => {
    isDark = !isDark;
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
    showTheme();
  });
  showTheme();

  // The text of a cell without its expandable details.
  const textOf = (cell) => (cell.querySelector("summary") ?? cell).textContent.trim();

  // Sort numbers before texts, and empty cells last, in both directions.
  const keyOf = (cell) =>
    cell.dataset.key === undefined ? textOf(cell).toLowerCase() : Number(cell.dataset.key);

  const compare = (a, b, sign) => {
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    if (a === "" || b === "") return (a === "") - (b === "");
    return sign * (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
  };

  const sortBy = (table, index) => {
    const heads = [...table.tHead.rows[0].cells];
    const isUp = heads[index].getAttribute("aria-sort") !== "ascending";
    heads.forEach((head) => head.setAttribute("aria-sort", "none"));
    heads[index].setAttribute("aria-sort", isUp ? "ascending" : "descending");
    const body = table.tBodies[0];
    const keyed = [...body.rows].map((row) => [keyOf(row.cells[index]), row]);
    keyed.sort((a, b) => compare(a[0], b[0], isUp ? 1 : -1));
    body.append(...keyed.map(([, row]) => row));
  };

  const makeSortable = (table) => {
    [...table.tHead.rows[0].cells].forEach((head, index) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      button.addEventListener("click", () => sortBy(table, index));
      head.setAttribute("aria-sort", "none");
      head.replaceChildren(button);
    });
  };

  const labelled = (text, control) => {
    const label = document.createElement("label");
    label.append(`${text} `, control);
    return label;
  };

  const choiceOf = (head, index, rows) => {
    const select = document.createElement("select");
    const values = [...new Set(rows.map((row) => textOf(row.cells[index])))].sort();
    select.append(new Option("all", "*"), ...values.map((value) => new Option(value || "(none)", `=${value}`)));
    select.dataset.column = String(index);
    return labelled(head.textContent, select);
  };

  const makeFiltered = (table) => {
    const rows = [...table.tBodies[0].rows];
    const heads = [...table.tHead.rows[0].cells];
    const tools = document.createElement("div");
    tools.className = "tools";
    tools.setAttribute("role", "group");
    tools.setAttribute("aria-label", `Filter: ${table.caption.textContent}`);
    const search = document.createElement("input");
    search.type = "search";
    const count = document.createElement("output");
    tools.append(labelled("Filter", search));
    heads.forEach((head, index) => {
      if ("choice" in head.dataset) tools.append(choiceOf(head, index, rows));
    });
    tools.append(count);
    const selects = [...tools.querySelectorAll("select")];
    const apply = () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = words.length ? row.textContent.toLowerCase() : "";
        const isShown =
          words.every((word) => text.includes(word)) &&
          selects.every(
            (select) =>
              select.value === "*" || select.value === `=${textOf(row.cells[Number(select.dataset.column)])}`,
          );
        row.hidden = !isShown;
        shown += Number(isShown);
      }
      count.textContent = `${shown} of ${rows.length} rows`;
    };
    tools.addEventListener("input", apply);
    apply();
    table.closest(".wide").before(tools);
  };

  for (const table of document.querySelectorAll("main table")) {
    if (table.tBodies[0].rows.length >= FILTERED_FROM) makeFiltered(table);
    if (table.tBodies[0].rows.length > 1) makeSortable(table);
  }
})();
