// A choice that changes what a page shows is sent at once. Without scripts its form has a button.
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-submit-on-change]")) event.target.form.requestSubmit();
});
