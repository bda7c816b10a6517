//go:build !roots

package checks

// bundledRoots is empty in a binary that runs on a system, which has CAs of its own.
const bundledRoots = ""
