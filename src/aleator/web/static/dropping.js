// An image may be dropped anywhere on the page, or pasted.

export function wireDropping(drop, askImage) {
  let inside = 0; // nested elements send the events in pairs
  window.addEventListener("dragenter", () => drop.classList.toggle("over", ++inside > 0));
  window.addEventListener("dragleave", () => drop.classList.toggle("over", --inside > 0));
  window.addEventListener("dragover", (event) => event.preventDefault());
  window.addEventListener("drop", (event) => {
    event.preventDefault();
    inside = 0;
    drop.classList.remove("over");
    askImage(event.dataTransfer.files[0]);
  });
  window.addEventListener("paste", (event) => askImage([...event.clipboardData.files].find((file) => file.type.startsWith("image/"))));
}
