/* What the theme leaves undone. A classic script, so that it also runs from disk. */
(function () {
  "use strict";

  /* A box that scrolls must be reachable by keyboard. */
  function letScrollersFocus() {
    var candidates = document.querySelectorAll(
      ".bd-article pre, .bd-article .pst-scrollable-table-container, .bd-article div.math, .bd-article .cell_output .output"
    );
    candidates.forEach(function (box) {
      if (box.scrollWidth > box.clientWidth + 1) box.setAttribute("tabindex", "0");
    });
  }

  /* Paper is light, whatever the screen is. */
  function printLight() {
    var root = document.documentElement;
    var theme = null;
    window.addEventListener("beforeprint", function () {
      theme = root.dataset.theme;
      root.dataset.theme = "light";
    });
    window.addEventListener("afterprint", function () {
      if (theme) root.dataset.theme = theme;
    });
  }

  /* docutils calls the bibliography a list, but its entries are no list items. */
  function unlistCitations() {
    document.querySelectorAll(".citation-list[role=list]").forEach(function (box) {
      box.removeAttribute("role");
    });
  }

  printLight();
  unlistCitations();
  letScrollersFocus();
  window.addEventListener("load", function () {
    /* Formulas get their width after the page has loaded. */
    var typeset = window.MathJax && window.MathJax.startup && window.MathJax.startup.promise;
    Promise.resolve(typeset).then(letScrollersFocus);
  });
  window.addEventListener("resize", letScrollersFocus);
})();
