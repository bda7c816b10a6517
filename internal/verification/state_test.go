package verification

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/condition"
)

const timedOut = "not verified within 5m0s"

// What the Node shows, and when, of what happens in a verification.
func TestShows(t *testing.T) {
	for name, test := range map[string]struct {
		happens func(m *model)
		want    []string
	}{
		"nothing before INITIAL_TIMEOUT": {func(m *model) {
			m.fails("dns")
			m.runFor(initialTimeout - time.Second)
		}, nil},
		"the last failure at INITIAL_TIMEOUT, once": {func(m *model) {
			m.fails("dns", "api")
			m.runFor(time.Hour)
		}, []string{"5m0s [api] " + timedOut + ": api: broken", "5m5s opened", "5m5s [api] " + timedOut + ": api: broken"}},
		"no check before any has failed": {func(m *model) { m.runFor(time.Hour) }, []string{"5m0s [] " + timedOut}},
		"no check if the release fails": {func(m *model) {
			m.ends(false)
			m.runFor(time.Hour)
		}, []string{"5m0s [] " + timedOut + ": patch: broken"}},
		"a requirement that was lost after the checks": {func(m *model) {
			m.apply(Failed{Round: m.roundOf("node"), Err: errBroken})
			m.runFor(time.Hour)
		}, []string{"5m0s [node] " + timedOut + ": node: broken"}},
		"each failed round after INITIAL_TIMEOUT": {func(m *model) {
			m.runFor(initialTimeout)
			m.fails("node")
			m.runFor(time.Hour)
		}, []string{"5m0s [] " + timedOut, "5m0s [node] node broken"}},
		"a failed round at once if the condition has to be corrected": {func(m *model) {
			m.ends(true, "node")
		}, []string{"0s [node] node broken"}},
		"a refused write again and again": {func(m *model) {
			m.attempts(errBroken, "node")
			m.refused = errRefused
			m.runFor(initialTimeout + 70*time.Second)
			m.refused = nil
			m.runFor(time.Hour)
		}, []string{"6m30s [node] " + timedOut + ": node: broken"}},
		"a refused finding of a round, as it was": {func(m *model) {
			m.runFor(initialTimeout)
			m.refused = errRefused
			m.fails("node")
			m.attempts(nil, "node")
			m.refused = nil
			m.runFor(time.Hour)
		}, []string{"5m0s [] " + timedOut, "5m30s [node] node broken"}},
		"no refused finding of a round if the next one passes": {func(m *model) {
			m.refused = errRefused
			m.ends(true, "node")
			m.refused = nil
			m.apply(Passed{})
			m.runFor(initialTimeout - time.Second)
		}, nil},
		"nothing while the release is on its way, and then the timeout": {func(m *model) {
			m.apply(Releasing{"a"})
			m.runFor(initialTimeout + 20*time.Second)
			m.apply(Patched{Outdated: true})
			m.runFor(time.Hour)
		}, []string{"5m30s [] " + timedOut}},
		"nothing while only the startup taint is waited for": {func(m *model) {
			m.apply(Waits{Failure: Failure{LateTaint, "late"}})
			m.runFor(time.Hour)
		}, nil},
		"a foreign taint, again after a refused write": {func(m *model) {
			m.attempts(errBroken, "dns") // the node may be opened after 5m5s
			m.runFor(initialTimeout - time.Second)
			m.refused = errRefused
			m.runFor(2 * time.Second)
			m.apply(Waits{Failure: Failure{condition.ForeignTaints, "taints: x"}})
			m.refused = nil
			m.runFor(time.Hour)
		}, []string{"5m30s [taints] " + timedOut + ": taints: x"}},
		"a foreign taint at once if the condition is True": {func(m *model) {
			m.apply(Waits{Failure: Failure{condition.ForeignTaints, "taints: x"}, Corrects: true})
			m.runFor(0)
		}, []string{"0s [taints] taints: x"}},
		"the timeout of the Node that has replaced another one": {func(m *model) {
			m.fails("node")
			m.runFor(4 * time.Minute)
			m.apply(Replaced{Facts{UID: "b", Locked: true}})
			m.runFor(time.Hour)
		}, []string{"9m0s [] " + timedOut}},
		"one timeout with --once": {func(m *model) {
			m.settings.Once = true
			m.runFor(4 * time.Minute)
			m.apply(Replaced{Facts{UID: "b", Locked: true}})
			m.runFor(time.Hour)
		}, []string{"5m0s [] " + timedOut}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newModel(settings())
			test.happens(m)
			assert.Equal(t, test.want, m.did)
		})
	}
}

// What fails is named by the check that tells the most.
func TestFailing(t *testing.T) {
	for name, test := range map[string]struct {
		happens func(m *model)
		want    Failure
	}{
		"none":                            {func(*model) {}, Failure{}},
		"the last check":                  {func(m *model) { m.attempts(errBroken, "dns", "api") }, Failure{"api", "api: broken"}},
		"not the check node":              {func(m *model) { m.attempts(errBroken, "dns", "node") }, Failure{"dns", "dns: broken"}},
		"the check node alone":            {func(m *model) { m.attempts(errBroken, "node") }, Failure{"node", "node: broken"}},
		"none once the check passes":      {func(m *model) { m.attempts(errBroken, "dns"); m.attempts(nil, "dns") }, Failure{}},
		"the same while others pass":      {func(m *model) { m.attempts(errBroken, "dns"); m.attempts(nil, "api") }, Failure{"dns", "dns: broken"}},
		"the check after a requirement":   {func(m *model) { m.attempts(errBroken, "node", "dns") }, Failure{"dns", "dns: broken"}},
		"none after a wait":               {func(m *model) { m.attempts(errBroken, "dns"); m.apply(Waits{}) }, Failure{}},
		"none of a Node that is gone":     {func(m *model) { m.attempts(errBroken, "dns"); m.apply(Replaced{}) }, Failure{}},
		"the patch, whatever failed last": {func(m *model) { m.attempts(errBroken, "dns"); m.ends(false) }, Failure{Patch, "patch: broken"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newModel(settings())
			test.happens(m)
			assert.Equal(t, test.want, m.failing)
		})
	}
}

// Only a Node whose checks have passed, and have not failed since, is proven.
func TestProven(t *testing.T) {
	for name, test := range map[string]struct {
		happens func(m *model)
		want    bool
	}{
		"at first":                {func(*model) {}, false},
		"by the checks":           {func(m *model) { m.apply(Releasing{"a"}) }, true},
		"although a patch fails":  {func(m *model) { m.apply(Releasing{"a"}); m.apply(Patched{}); m.ends(false) }, true},
		"until a check fails":     {func(m *model) { m.apply(Releasing{"a"}); m.attempts(errBroken, "dns") }, false},
		"until a foreign taint":   {func(m *model) { m.apply(Releasing{"a"}); m.apply(Patched{Outdated: true}) }, false},
		"until it is replaced":    {func(m *model) { m.apply(Releasing{"a"}); m.apply(Replaced{}) }, false},
		"by another verification": {func(m *model) { m.State = Begin(settings(), m.node, "a", m.now) }, true},
	} {
		m := newModel(settings())
		test.happens(m)
		assert.Equal(t, test.want, m.Proven == "a", name)
	}
}

// Whatever happens: a Tick is never due again at once, nothing is written during a release or before INITIAL_TIMEOUT unless the
// condition has to be corrected, a refused write is tried again, and a node that passes is not opened.
func TestRandomVerifications(t *testing.T) {
	for seed := range uint64(3000) {
		random := rand.New(rand.NewPCG(seed, 0))
		s := settings()
		s.Once, s.Opens, s.Random = random.IntN(4) == 0, random.IntN(2) == 0, random.Float64
		m := newModel(s)
		corrected := false
		for range 60 {
			names := checks.Names()[random.IntN(2):]
			written := len(m.did)
			m.refused = nil
			if random.IntN(3) == 0 {
				m.refused = errRefused
			}
			wasOpen, wasTimedOut, before := m.IsOpen(), m.TimedOut, m.Began
			happened := random.IntN(9)
			switch happened {
			case 0:
				m.fails(names...)
			case 1:
				m.ends(true, names...)
				corrected = true
			case 2:
				m.attempts(nil, checks.Names()...)
				m.apply(Passed{})
				assert.Zero(t, m.opening.at, "seed %d", seed)
			case 3:
				m.apply(Releasing{m.node.UID})
				m.runFor(time.Duration(random.Int64N(int64(initialTimeout))))
				assert.Len(t, m.did, written, "seed %d", seed)
				m.apply(Patched{})
			case 4:
				m.apply(Waits{Failure: Failure{condition.ForeignTaints, "taints: x"}})
			case 5:
				m.apply(Waits{})
			case 6:
				m.node = Facts{UID: m.node.UID + "'", Locked: true}
				m.apply(Replaced{m.node})
				if began := m.now; !s.Once {
					assert.Equal(t, began, m.Began, "seed %d", seed)
				} else {
					assert.Equal(t, before, m.Began, "seed %d", seed)
				}
				corrected = corrected && s.Once
			case 7:
				m.node.Locked = true // a stale client puts the startup taint back
				m.fails("dns")
				assert.False(t, wasOpen && m.IsOpen() && !m.opening.at.IsZero(), "seed %d", seed)
			default:
				m.runFor(time.Duration(random.Int64N(int64(2 * initialTimeout))))
			}
			assert.True(t, m.TimedOut || corrected || len(m.did) == written || wasTimedOut, "seed %d: %s", seed, m.did)
			if m.TimedOut && m.refused != nil && len(m.did) == written && happened == 0 {
				assert.False(t, m.Next().IsZero(), "seed %d: the write that was refused is tried again", seed)
			}
			m.refused = nil
			m.runFor(0)
			assert.False(t, m.IsDue(m.now), "seed %d", seed)
		}
	}
}
