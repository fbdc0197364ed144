"use strict";
// Search, sorting, filters, copy buttons and the color theme. Without this script, the page shows the same content
// without these controls, and narrow screens scroll tables sideways.
(() => {
  const FILTERED_FROM = 12;

  document.documentElement.classList.add("scripted");
  document.querySelector(".controls").hidden = false;

  const darkButton = document.querySelector("[data-theme-button]");
  let isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const showTheme = () => darkButton.setAttribute("aria-pressed", String(isDark));
  darkButton.addEventListener("click", () => {
    isDark = !isDark;
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
    showTheme();
  });
  showTheme();

  // A link to an explanation expands it.
  const expandTarget = () => {
    const target = document.getElementById(location.hash.slice(1));
    if (target?.tagName === "DETAILS") target.open = true;
  };
  addEventListener("hashchange", expandTarget);
  document.addEventListener("click", (event) => {
    if (event.target.closest('a[href^="#"]')) setTimeout(expandTarget);
  });
  expandTarget();

  // Pages that are served without TLS have no clipboard API.
  const copied = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      const isCopied = document.execCommand("copy");
      area.remove();
      return isCopied;
    }
  };
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.hidden = false;
    button.setAttribute("aria-live", "polite");
    button.addEventListener("click", async () => {
      button.textContent = (await copied(button.dataset.copy)) ? "Copied" : "Select the text to copy it";
      button.focus();
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
  }

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

  // On a narrow screen, the style sheet shows a row as a list of labelled cells. Its roles stay those of a table.
  const labelCells = (table) => {
    const heads = [...table.tHead.rows[0].cells].map((head) => head.textContent);
    for (const row of table.tBodies[0].rows) {
      [...row.cells].forEach((cell, index) => {
        cell.dataset.label = heads[index];
        cell.setAttribute("role", index ? "cell" : "rowheader");
      });
    }
    table.setAttribute("role", "table");
    for (const group of [table.tHead, table.tBodies[0]]) group.setAttribute("role", "rowgroup");
    for (const row of table.rows) row.setAttribute("role", "row");
    for (const head of table.tHead.rows[0].cells) head.setAttribute("role", "columnheader");
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

  const search = document.querySelector("[data-search]");
  let words = [];
  const isFound = (text) => words.every((word) => text.toLowerCase().includes(word));

  // Each returns how many of its parts contain the words of the search, and shows only these.
  const filters = [];

  const makeFiltered = (table) => {
    const rows = [...table.tBodies[0].rows];
    const tools = document.createElement("div");
    const count = document.createElement("output");
    let selects = [];
    if (rows.length >= FILTERED_FROM) {
      tools.className = "tools";
      tools.setAttribute("role", "group");
      tools.setAttribute("aria-label", `Filter: ${table.caption.textContent}`);
      [...table.tHead.rows[0].cells].forEach((head, index) => {
        if ("choice" in head.dataset) tools.append(choiceOf(head, index, rows));
      });
      tools.append(count);
      selects = [...tools.querySelectorAll("select")];
      table.closest(".wide").before(tools);
    }
    const apply = () => {
      let shown = 0;
      for (const row of rows) {
        const isChosen = selects.every(
          ({ value, dataset }) => value === "*" || value === `=${textOf(row.cells[Number(dataset.column)])}`,
        );
        row.hidden = !(isChosen && (!words.length || isFound(row.textContent)));
        shown += Number(!row.hidden);
      }
      count.textContent = `${shown} of ${rows.length} rows`;
      return shown;
    };
    tools.addEventListener("input", apply);
    filters.push(apply);
    apply();
  };

  const filterItem = (item) => {
    const inner = [...item.querySelectorAll(":scope > details > ul > li")].map(filterItem);
    const own = Number(isFound(item.querySelector(".line").textContent));
    const below = inner.reduce((sum, count) => sum + count, 0);
    item.hidden = own + below === 0;
    const details = item.querySelector(":scope > details");
    if (details !== null) {
      details.dataset.wasOpen ??= String(details.open);
      details.open = words.length ? below > 0 : details.dataset.wasOpen === "true";
      if (!words.length) delete details.dataset.wasOpen;
    }
    return own + below;
  };

  const filterWhole = (part) => {
    part.hidden = !isFound(part.textContent);
    return Number(!part.hidden);
  };

  for (const table of document.querySelectorAll("main table")) {
    labelCells(table);
    makeFiltered(table);
    if (table.tBodies[0].rows.length > 1) makeSortable(table);
  }
  for (const item of document.querySelectorAll(".tree > ul > li")) filters.push(() => filterItem(item));
  for (const part of document.querySelectorAll("main section > :is(.finding, .explanation, ul > li)"))
    filters.push(() => filterWhole(part));

  const matches = document.querySelector("[data-matches]");
  search.addEventListener("input", () => {
    words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = filters.reduce((sum, apply) => sum + apply(), 0);
    matches.textContent = words.length ? `${found} found` : "";
    document.documentElement.classList.toggle("searching", words.length > 0);
    for (const section of document.querySelectorAll("main section")) {
      const parts = [...section.querySelectorAll("tbody tr, .tree li, .finding, .explanation")];
      section.hidden = words.length > 0 && !parts.some((part) => !part.hidden);
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.matches("input, select, textarea")) return;
    event.preventDefault();
    search.focus();
  });
})();
