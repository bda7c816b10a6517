package harness

import (
	"context"
	"os"
	"path/filepath"
	"strings"
)

// WithoutRoute has the CNI of a node give an address and no route to each pod that starts, until the function that it returns is
// called, at the latest when the test ends.
func (s *Suite) WithoutRoute(node string) (repair func()) {
	s.Helper()
	path := filepath.Join(s.Dir, "nodes", node, "net.d", "10-ptp.conflist")
	text, err := os.ReadFile(path)
	s.NoError(err)
	broken := strings.Replace(string(text), `"routes": [{"dst": "0.0.0.0/0"}]`, `"routes": []`, 1)
	s.NotEqual(string(text), broken)
	write := func(context.Context) error { return os.WriteFile(path, text, 0o600) }
	s.Undo(write)
	s.NoError(os.WriteFile(path, []byte(broken), 0o600))
	return func() { s.NoError(write(s.Ctx)) }
}
