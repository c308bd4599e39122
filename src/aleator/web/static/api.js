// Requests to the server. A request is repeated if the server is busy. Every other failure is an Error with the message
// of the server, and with its status if it answered.

const PATIENCE = 3;

export async function call(path, { params = {}, signal, ...options } = {}) {
  const asked = Object.entries(params).filter(([, value]) => value !== undefined && value !== "");
  const address = asked.length ? `${path}?${new URLSearchParams(asked)}` : path;
  for (let attempt = 1; ; attempt++) {
    let response;
    try {
      response = await fetch(address, { signal, ...options });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("The server cannot be reached. Is aleator serve still running?");
    }
    if (response.status === 503 && attempt < PATIENCE) {
      await new Promise((done) => setTimeout(done, 1000 * Number(response.headers.get("Retry-After") || 1)));
      continue;
    }
    if (response.ok) return response.json();
    const problem = await response.json().catch(() => ({}));
    throw Object.assign(new Error(problem.detail || `The server answered ${response.status}.`), { status: response.status });
  }
}

export function post(path, body, options) {
  const headers = { "Content-Type": "application/json" };
  return call(path, { method: "POST", headers, body: JSON.stringify(body), ...options });
}

export function imageAddress(key, size) {
  return `/api/image?${new URLSearchParams(size ? { id: key, size } : { id: key })}`;
}
