package remediation

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// kept is how many deletions are remembered: ten days of them at least. Their age does not count: the clock may be wrong.
	kept = 100
	// ledgerKey is the key of the ledger in its ConfigMap.
	ledgerKey = "ledger"
	// ClearHalt is the annotation on the ledger's ConfigMap that ends halts: NodePools, separated by commas, or * for all.
	ClearHalt = "node-ready/clear-halt"
)

// Ledger is what has been deleted. It is written before each deletion, so that neither a crash nor a second leader forgets one.
type Ledger struct {
	Deletions []Deletion       `json:"deletions"` // in the order of their time
	Guards    map[string]Guard `json:"guards"`    // by scope, and the Cluster's
}

// Deletion is one node that has been replaced, or is being replaced. Its time is that of the API server's clock.
type Deletion struct {
	Time      time.Time `json:"time"`
	Scope     string    `json:"nodePool"` // see scopeOf
	Node      string    `json:"node"`
	NodeUID   types.UID `json:"nodeUID"`
	NodeClaim string    `json:"nodeClaim"` // "": the Node itself was deleted
	Reason    string    `json:"reason"`
	Gone      bool      `json:"gone,omitempty"`  // the node is
	Stuck     bool      `json:"stuck,omitempty"` // it has taken too long
}

// Guard is the loop guard of one scope, by the API server's clock.
type Guard struct {
	// Answered is when the newest node of the scope that was verified was created, or when somebody has cleared a halt:
	// the deletions before do not count.
	Answered time.Time `json:"answered,omitzero"`
	Halted   time.Time `json:"halted,omitzero"`
}

// parseLedger reads what String has written. An empty text is an error: it would clear halts and budgets.
func parseLedger(text string) (ledger Ledger, err error) {
	err = json.Unmarshal([]byte(text), &ledger)
	if err == nil && !strings.Contains(text, "deletions") {
		err = errors.New("somebody has emptied it")
	}
	if err != nil {
		return ledger, fmt.Errorf("the ledger is not readable: %w: restore it", err)
	}
	return ledger, nil
}

func (l Ledger) String() string {
	text, _ := json.Marshal(l) // of strings, bools and times: it cannot fail
	return string(text)
}

func (l Ledger) clone() Ledger {
	guards := make(map[string]Guard)
	maps.Copy(guards, l.Guards)
	return Ledger{Deletions: slices.Clone(l.Deletions), Guards: guards}
}
