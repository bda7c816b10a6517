package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// cluster is what the kubectl and the helm of these tests work on. The end-to-end tests run the blocks against a real one.
const cluster = `
kubectl() {
  case $* in
  *"get configmaps"*) cat "$dir/releases" ;;
  *"a get pods"*) echo " node1 " ;;
  *"b get pods"*) echo " node2 " ;;
  *"get nodes --output name"*) printf 'node/node1\nnode/node2\n' ;;
  *"get nodes"*) printf 'node1 node-ready/unverified\nnode2 node-ready/unverified\n' ;;
  *) echo "kubectl $*" >>"$dir/log" ;;
  esac
}
helm() {
  echo "helm $*" >>"$dir/log"
  sed -i "/|$4|[^|]*|[^|]*\$/d" "$dir/releases"
  exit 1 # Ctrl-C
}
`

// block returns the block of a document after a marker.
func block(t *testing.T, name, marker string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", name))
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), "<!-- "+marker+" -->\n```sh\n")
	require.True(t, found, "%s has no block %q", name, marker)
	block, _, _ := strings.Cut(rest, "```")
	return block
}

// runBlock runs commands in a shell of its own, and returns what they print, and every call of kubectl and helm that changes something.
func runBlock(t *testing.T, dir, commands string) (out string, calls []string, err error) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "log"), nil, 0o600))
	shell := exec.Command("sh", "-c", "dir='"+dir+"'\n"+cluster+commands)
	output, err := shell.CombinedOutput()
	log, failure := os.ReadFile(filepath.Join(dir, "log"))
	require.NoError(t, failure)
	t.Logf("%s", output)
	return string(output), strings.FieldsFunc(string(log), func(r rune) bool { return r == '\n' }), err
}

// Whoever uninstalls one of two releases of the same name and goes on in another shell, as the block says, leaves the other one alone.
func TestUninstallGoesOnInAnotherShell(t *testing.T) {
	dir := t.TempDir()
	const left = "b|gate|kube-node-ready|gate|b|NodeVerified|,node-ready/unverified,node-ready/failed,,\n"
	releases := strings.ReplaceAll(left, "b|", "a|") + left
	require.NoError(t, os.WriteFile(filepath.Join(dir, "releases"), []byte(releases), 0o600))
	text := block(t, "docs/operations.md", "uninstall")
	const settings = "namespace='' keys='' nodes='' condition=''\n"
	require.Contains(t, text, settings)
	set := func(release, rest string) string {
		return strings.NewReplacer("release=kube-node-ready\n", release+"\n", settings, settings+rest+"\n").Replace(text)
	}

	out, calls, err := runBlock(t, dir, set("release=gate", "namespace=a"))
	require.Error(t, err, "it is interrupted")
	assert.Equal(t, []string{"helm uninstall gate --namespace a"}, calls)
	said := regexp.MustCompile("To go on in another shell, set: (.*)").FindStringSubmatch(out)
	require.NotNil(t, said)

	out, calls, err = runBlock(t, dir, set("release=gate", said[1]))
	require.NoError(t, err)
	assert.Contains(t, out, "Still tainted:")
	assert.Equal(t, []string{"kubectl taint node node1 node-ready/unverified-"}, calls)

	out, calls, err = runBlock(t, dir, set("release=gate", "keys=node-ready/unverified"))
	require.Error(t, err)
	assert.Contains(t, out, "b/gate", "the release that it would uninstall")
	assert.Empty(t, calls)
}

// The former condition is removed while the release is there.
func TestFormerCondition(t *testing.T) {
	text := strings.Replace(block(t, "docs/operations.md", "former-condition"), "former=FORMER", "former=Proven", 1)
	_, calls, err := runBlock(t, t.TempDir(), text)
	require.NoError(t, err)
	const patch = ` --subresource=status --type=strategic -p {"status":{"conditions":[{"$patch":"delete","type":"Proven"}]}}`
	assert.Equal(t, []string{"kubectl patch node/node1" + patch, "kubectl patch node/node2" + patch}, calls)
}
