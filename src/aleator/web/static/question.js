// A question as people see it: its title and its picture.

import { face } from "./tiles.js";
import { element } from "./words.js";

export function titleOf({ kind, file }, { query }) {
  return query.item ? String(query.item.id) : { image: file?.name || "Your image", text: "Your text", features: "Your features" }[kind];
}

export function pictureOf({ kind, file, text = null }, { query }) {
  const picture = face(query.item ?? { image: false, text, surer_than: query.surer_than }, 320);
  if (kind === "image") {
    const address = URL.createObjectURL(file);
    const image = element("img", { alt: "the image you chose", src: address });
    image.addEventListener("load", () => (image.classList.toggle("small", image.naturalWidth <= 96), URL.revokeObjectURL(address)));
    picture.replaceChildren(image);
  }
  return picture;
}
