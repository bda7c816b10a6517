//go:build !roots

package checks

// bundledRoots is empty in a binary for a system with CAs of its own.
const bundledRoots = ""
