// Before anything is drawn: the theme that the user chose, if any; else the system's.
"use strict";
document.documentElement.dataset.theme = localStorage.getItem("akunu-py-theme") || "";
