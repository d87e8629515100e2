import { defineConfig } from "vitest/config";

// What is pure is tested without a browser; what is drawn, by tests/browser of the repository.
export default defineConfig({ test: { include: ["tests/**/*.test.ts"], environment: "node" } });
