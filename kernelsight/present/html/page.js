// Draws the charts of a page, and sorts a table by the column whose head is clicked.
"use strict";
for (const place of document.querySelectorAll(".chart")) {
  const spec = JSON.parse(document.getElementById(place.id + "-spec").textContent);
  window.drawChart(place, spec).then(() => {
    // a mark without items would be a picture without a name
    for (const empty of place.querySelectorAll("[role='graphics-symbol']:empty")) empty.setAttribute("aria-hidden", "true");
  }).catch(error => console.error(error));
}
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement, body = head.closest("table").tBodies[0];
    const rising = head.getAttribute("aria-sort") === "descending";
    for (const other of head.parentElement.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", rising ? "ascending" : "descending");
    const value = row => row.cells[head.cellIndex].dataset.v;
    const order = (a, b) => {
      const x = value(a), y = value(b);
      if (x === "" || y === "") return (x === "") - (y === "");
      const found = head.classList.contains("n") ? x - y : x.localeCompare(y);
      return rising ? found : -found;
    };
    body.append(...[...body.rows].sort(order));
  });
}
