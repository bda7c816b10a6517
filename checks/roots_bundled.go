//go:build roots

package checks

import _ "embed"

// bundledRoots are the public CAs (PEM) of the image that built the agent: the Dockerfile copies them here.
//
//go:embed roots.pem
var bundledRoots string
