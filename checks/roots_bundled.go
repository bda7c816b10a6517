//go:build roots

package checks

import _ "embed"

// bundledRoots are the public CAs (PEM) of the image that the agent was built in: its own image holds nothing
// but the binary. The Dockerfile puts them here.
//
//go:embed roots.pem
var bundledRoots string
