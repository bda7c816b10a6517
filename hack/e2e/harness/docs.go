package harness

import (
	"os"
	"path/filepath"
	"strings"
)

// Block returns the block of a document of the repository that follows the comment with a marker.
func (s *Suite) Block(path, marker, language string) string {
	s.T.Helper()
	text, err := os.ReadFile(filepath.Join(s.Cluster.Root, path))
	s.NoError(err)
	_, rest, found := strings.Cut(string(text), "<!-- "+marker+" -->\n")
	s.True(found, "%s has no marker %q", path, marker)
	opening, rest, _ := strings.Cut(rest, "\n")
	s.Equal("```"+language, strings.TrimSpace(opening))
	block, _, found := strings.Cut(rest, "```")
	s.True(found, "the block after %q does not end", marker)
	return block
}

// Bash runs commands as a script that stops at the first error, and returns what it printed.
func (s *Suite) Bash(commands string) string {
	s.T.Helper()
	path := filepath.Dir(s.Cluster.Tool("kubectl")) + ":" + os.Getenv("PATH")
	out, err := s.Cluster.Run(s.Ctx, commands, "env", "PATH="+path, "bash", "-euo", "pipefail")
	s.NoError(err)
	s.T.Log(out)
	return out
}
