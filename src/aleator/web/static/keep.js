// The last image that the user chose, kept in the browser so that it is still there after the page is loaded again.

const [BASE, STORE] = ["aleator", "questions"];

function open() {
  return new Promise((done, failed) => {
    const request = indexedDB.open(BASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    request.onsuccess = () => done(request.result);
    request.onerror = () => failed(request.error);
  });
}

function within(base, mode, work) {
  return new Promise((done, failed) => {
    const transaction = base.transaction(STORE, mode);
    const request = work(transaction.objectStore(STORE));
    transaction.oncomplete = () => done(request.result);
    transaction.onerror = transaction.onabort = () => failed(transaction.error);
  });
}

// Each collection has its own image. Without storage, as in some private windows, nothing is kept.
export async function keepImage(collection, file) {
  try {
    await within(await open(), "readwrite", (store) => store.put(file, collection));
  } catch {
    // The question is then lost with the page.
  }
}

export async function keptImage(collection) {
  try {
    return (await within(await open(), "readonly", (store) => store.get(collection))) ?? null;
  } catch {
    return null;
  }
}
