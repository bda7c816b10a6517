package size

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

const allowance = 1.03

// TestBudget builds the agent as `make build` does and holds it to budget.json. Who makes it larger
// on purpose writes the new figures there, and says why in the commit.
func TestBudget(t *testing.T) {
	text, err := os.ReadFile("budget.json")
	if err != nil {
		t.Fatal(err)
	}
	// Bytes of the binary for linux/amd64, and of the same through gzip, which is nearly the image.
	var budget struct{ Binary, Compressed int64 }
	if err := json.Unmarshal(text, &budget); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kube-node-ready")
	build := exec.Command("make", "-C", "../../..", "build", "BIN="+path)
	build.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	compressed, err := Gzipped(file)
	if err != nil {
		t.Fatal(err)
	}
	for what, size := range map[string]struct{ is, budget int64 }{
		"binary": {info.Size(), budget.Binary}, "compressed": {compressed, budget.Compressed},
	} {
		t.Logf("%s: %d bytes, %.1f %% of the budget", what, size.is, 100*float64(size.is)/float64(size.budget))
		if float64(size.is) > allowance*float64(size.budget) {
			t.Errorf("%s: %d bytes are more than %.2f times the %d of hack/bench/size/budget.json", what, size.is, allowance, size.budget)
		}
	}
}
