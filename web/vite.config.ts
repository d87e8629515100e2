import { defineConfig } from "vite";

// The API serves what is built here, from a directory of its own package. Nothing is inlined: the page's
// Content-Security-Policy takes scripts and styles from files alone.
export default defineConfig({
  base: "/assets/",
  build: {
    outDir: "../api/web",
    emptyOutDir: true,
    assetsDir: ".",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
  },
  server: {
    port: 5173,
    proxy: { "/v1": { target: "http://127.0.0.1:8000", changeOrigin: false } }, // the session checks where it is used
  },
});
