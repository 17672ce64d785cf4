// Requests to this server from its pages, which ask for its API key if it wants one.
const KEY = "akunu-py-key";
export const $ = (id) => document.getElementById(id);
let asking = null; // for the key, on behalf of all requests
export async function request(path, options = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY), bytes = String.fromCharCode(...new TextEncoder().encode(key ?? ""));
    const headers = key ? { Authorization: `Bearer ${bytes}` } : {};
    const response = await fetch(path, { ...options, headers, cache: "no-store" });
    if (response.ok) return response;
    const said = await response.json().catch(() => null); // a proxy says something else
    if (response.status !== 401) throw new Error(said?.error?.message ?? `The server answered ${response.status}.`);
    await (asking ??= askKey(key));
  }
}
function askKey(wrong) {
  $("key-error").textContent = wrong ? "That is not the key." : "";
  $("ask-key").showModal();
  return new Promise((resolve, reject) => {
    $("ask-key").onclose = () => {
      asking = $("ask-key").onclose = null;
      sessionStorage.setItem(KEY, $("key").value);
      return $("key").value ? resolve() : reject(new Error("The server requires its API key."));
    };
  });
}
