package recheck

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// The verdict after each round: T True, F False, ? to be proven. A round passes (.) or fails (x).
func TestVerdict(t *testing.T) {
	for name, test := range map[string]struct{ shown, rounds, verdicts string }{
		"no condition yet":               {"", "...", "??T"},
		"unknown":                        {"Unknown", "....", "??TT"},
		"unknown, and fails":             {"Unknown", ".xxx", "???F"},
		"unknown, and a round fails":     {"Unknown", "..x...", "?????T"},
		"a single failure":               {True, "x.", "TT"},
		"a pass begins the count again":  {True, "xx.xx.xxx", "TTTTTTTTF"},
		"flapping":                       {True, "x.x.x.xx.", "TTTTTTTTT"},
		"flapping after a failure":       {True, "xxx.x..x.", "TTFFFFFFF"},
		"recovery":                       {True, "xxxx...", "TTFFFFT"},
		"recovery, and another failure":  {True, "xxx...xx.xxx", "TTFFFTTTTTTF"},
		"failed before the restart":      {False, "...", "FFT"},
		"fails on after the restart":     {False, "x...", "FFFT"},
		"a failure begins the count too": {False, "..x..x...", "FFFFFFFFT"},
	} {
		t.Run(name, func(t *testing.T) {
			m := found(defaults(), shows(test.shown, "NetworkFailed"))
			verdicts := ""
			for _, outcome := range test.rounds {
				m.rounds(map[rune]string{'x': "network"}[outcome])
				verdicts += map[string]string{True: "T", False: "F", "": "?"}[m.Status]
			}
			assert.Equal(t, test.verdicts, verdicts)
		})
	}
}

// Rounds begin at once within an interval, and then follow an interval ±20 % after one another. A round that takes longer than the
// interval leaves a pause of a tenth.
func TestWhenRoundsAreMade(t *testing.T) {
	for random, want := range map[float64][]time.Duration{
		0:   {6 * time.Second, 48 * time.Second},
		0.5: {30 * time.Second, 60 * time.Second},
		1:   {60 * time.Second, 72 * time.Second},
	} {
		settings := defaults()
		settings.Random = func() float64 { return random }
		m := found(settings, shows(True, "Verified"))
		action, first := m.Next(m.now)
		assert.Equal(t, Round, action)
		assert.Equal(t, want[0], first.Sub(m.now))
		m.step()
		action, second := m.Next(m.now)
		assert.Equal(t, Round, action)
		assert.Equal(t, want[1], second.Sub(first))
		ended := second.Add(2 * time.Minute)
		action, third := m.AfterRound(Results{Began: second}, m.node, ended).Next(ended)
		assert.Equal(t, Round, action)
		assert.Equal(t, 6*time.Second, third.Sub(ended))
	}
}

// Rounds that are further apart than five minutes do not find a removed label late: the node is read between them.
func TestLook(t *testing.T) {
	for interval, looks := range map[time.Duration]int{time.Minute: 0, 5 * time.Minute: 0, 6 * time.Minute: 1, time.Hour: 11} {
		settings := defaults()
		settings.Interval = interval
		m := found(settings, shows(True, "Verified"))
		m.rounds("")
		assert.Equal(t, looks, m.untilRound(), interval)
	}
}

func TestVerifyAgain(t *testing.T) {
	settings := defaults()
	settings.Interval = time.Hour
	for name, happened := range map[string]func(*model){
		"in a round":     func(m *model) { m.State = m.AfterRound(Results{Failed: []string{"network"}}, m.read(), m.now) },
		"in a write":     func(m *model) { m.State = m.AfterWrite(Written{}, m.read(), m.now) },
		"between rounds": (*model).look,
	} {
		m := found(settings, shows(True, "Verified"))
		m.rounds("", "network")
		m.node.Verified = false
		happened(m)
		action, at := m.Next(m.now)
		assert.Equal(t, Verify, action, name)
		assert.Equal(t, m.now, at, name)
	}
}

// Large packets are sent once an hour, and in every round after a failure of such a round.
func TestThoroughRounds(t *testing.T) {
	m := found(defaults(), shows(True, "Verified"))
	thorough := func() (minutes []int) {
		for i, options := range m.made {
			if options.Thorough {
				minutes = append(minutes, i)
			}
			assert.True(t, options.Recheck)
		}
		return minutes
	}
	m.runFor(3 * time.Hour)
	assert.Equal(t, []int{30, 91, 152}, thorough(), "the first at a random time within the hour")
	assert.True(t, m.made[30].NewConnection)
	assert.False(t, m.made[31].NewConnection)

	m.made = nil
	for !m.next().Thorough {
		m.rounds("")
	}
	m.made = nil
	m.rounds("network", "network", "", "")
	assert.Equal(t, []int{0, 1, 2}, thorough(), "until one passes")

	m.made = nil
	for !m.next().Thorough {
		m.rounds("network")
	}
	assert.GreaterOrEqual(t, len(m.made), 58, "a round without them puts them off no further")
	m.made = nil
	m.node.Untouchable = "it is cordoned"
	m.rounds("", "")
	assert.Equal(t, []int{0}, thorough(), "nor in each round while the node is cordoned")
}

// A node may have failed because of large packets alone: its next agent does not find that it has recovered without them.
func TestFirstRoundIsThorough(t *testing.T) {
	for status, want := range map[string]bool{True: false, False: true, "Unknown": true, "": true} {
		assert.Equal(t, want, found(defaults(), shows(status, "")).next().Thorough, status)
	}
	rebooted := shows(True, "")
	rebooted.Rebooted = true
	assert.True(t, found(defaults(), rebooted).next().Thorough, "the network of a new boot is new")
}

// How a round is made after the checks that have failed, of which each is a round.
func TestRoundAfterFailures(t *testing.T) {
	const dns, peers, fresh = "DNS must answer", "peers must answer", "new connection"
	for name, test := range map[string]struct {
		rounds []string
		want   []string
	}{
		"passes":                           {[]string{""}, nil},
		"after another failure":            {[]string{"network"}, []string{fresh}},
		"after a failure that is over":     {[]string{"network", ""}, nil},
		"service":                          {[]string{"service"}, []string{fresh}},
		"service, False":                   {[]string{"service", "service", "service"}, []string{dns, fresh}},
		"service, False, recovering":       {[]string{"service", "service", "service", "", ""}, []string{dns}},
		"service, recovered":               {[]string{"service", "service", "service", "", "", ""}, nil},
		"service, and then something else": {[]string{"service", "service", "network"}, []string{fresh}},
		"peers":                            {[]string{"peers"}, []string{peers, fresh}},
		"peers, over":                      {[]string{"peers", ""}, nil},
		"peers, twice":                     {[]string{"peers", "peers"}, []string{peers, fresh}},
		"peers, False":                     {[]string{"peers", "peers", "peers"}, []string{peers, fresh}},
		"peers, recovering once":           {[]string{"peers", "peers", "peers", ""}, []string{peers}},
		"peers, recovering":                {[]string{"peers", "peers", "peers", "", ""}, []string{peers}},
		"peers, recovered":                 {[]string{"peers", "peers", "peers", "", "", ""}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := found(defaults(), shows(True, "Verified"))
			m.rounds("", "")
			m.rounds(test.rounds...)
			assert.ElementsMatch(t, test.want, wishes(m.next()))
		})
	}
}

// wishes names what a round asks for.
func wishes(o checklist.Options) (list []string) {
	for text, wished := range map[string]bool{
		"DNS must answer": o.DNSMustAnswer, "peers must answer": o.PeersMustAnswer, "new connection": o.NewConnection,
	} {
		if wished {
			list = append(list, text)
		}
	}
	return list
}

// What the condition says when an agent starts decides who must answer in its rounds.
func TestRoundAfterARestart(t *testing.T) {
	for name, test := range map[string]struct {
		node       Facts
		dns, peers bool
	}{
		"DNS pods":                  {shows(False, "DNSFailed,ServiceFailed"), true, false},
		"peers":                     {shows(False, "DNSFailed,PeersFailed"), false, true},
		"another check":             {shows(False, "NetworkFailed"), false, false},
		"silent":                    {retainted(shows(False, "Silent")), false, true},
		"silent, not re-tainted":    {shows(False, "Silent"), false, true},
		"no agent":                  {retainted(shows("Unknown", "NotRechecked")), false, true},
		"no agent, not re-tainted":  {shows("Unknown", "NotRechecked"), false, false},
		"re-tainted, its own True":  {retainted(shows(True, "Verified")), false, false},
		"re-tainted, its own False": {retainted(shows(False, "NetworkFailed")), false, false},
		"no condition":              {retainted(shows("", "")), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := found(defaults(), test.node)
			m.rounds("", "")
			assert.Equal(t, []bool{test.dns, test.peers}, []bool{m.last().DNSMustAnswer, m.last().PeersMustAnswer})
			if test.peers {
				isOwn := test.node.Shown.Reasons.Has(condition.PeersFailed)
				assert.NotEqual(t, isOwn, m.last().FewPeersMayWarn, "the agent has found three that did not answer")
			}
			m.rounds("")
			assert.Equal(t, True, m.Status)
			assert.Empty(t, wishes(m.next()))
		})
	}
}

// While somebody drains the node or takes it away there is no verdict, and what was counted before does not count.
func TestUntouchable(t *testing.T) {
	m := found(defaults(), shows(True, "Verified"))
	m.rounds("", "network", "network")
	m.node.Untouchable = "it is cordoned"
	m.rounds("network", "network", "network", "network")
	assert.Equal(t, True, m.Status)
	assert.Zero(t, m.Failed)
	m.node.Untouchable = ""
	m.rounds("network", "network")
	assert.Equal(t, True, m.Status)
	m.rounds("network")
	assert.Equal(t, False, m.Status)
	wrote := slices.Clone(m.did)
	assert.Len(t, wrote, 1)

	m.rounds("", "")
	m.node.Untouchable = "it is cordoned"
	m.rounds("", "", "", "")
	assert.Equal(t, False, m.Status, "the last verdict stays")
	m.node.Untouchable = ""
	m.rounds("", "")
	assert.Equal(t, False, m.Status)
	m.rounds("")
	assert.Equal(t, True, m.Status)
}

// A node that was cordoned when it was last read may have been uncordoned long ago: without a path to the API server nobody knows.
func TestCordonedThenCutOff(t *testing.T) {
	m := found(defaults(), shows(True, "Verified"))
	m.node.Untouchable = "it is cordoned"
	m.rounds("network")
	read := m.now
	for range 3 {
		assert.Equal(t, True, m.Status)
		began := m.now.Add(time.Minute)
		assert.False(t, m.IsUntouchable(began))
		m.now = began.Add(time.Second)
		m.State = m.AfterRound(Results{Began: began, Failed: []string{"api"}}, m.facts, m.now)
	}
	assert.Equal(t, False, m.Status)
	assert.True(t, m.IsUntouchable(read.Add(-time.Second)))
}

func TestRead(t *testing.T) {
	const record = `{"time":"2026-01-02T03:04:05Z","duration":"1s","removed":["node-ready/unverified=true:NoSchedule"]}`
	const leftover = `{"time":"2026-01-02T03:04:05Z","duration":"1s","removed":["node-ready/failed=dns:NoSchedule"]}`
	keys := nodepatch.Keys{TaintKey: "node-ready/unverified", FailedTaintKey: "node-ready/failed",
		Label: "node-ready/verified", LabelValue: "true"}
	at := time.Now()
	ours := nodepatch.Condition{Type: "NodeVerified", Status: False, Reason: "Silent"}
	failed := nodepatch.Taint{Key: "node-ready/failed", Effect: "NoSchedule"}
	for name, test := range map[string]struct {
		edit func(*nodepatch.Node)
		at   time.Time
		want Facts
	}{
		"verified":          {func(*nodepatch.Node) {}, at, Facts{Verified: true}},
		"without the label": {func(n *nodepatch.Node) { n.Labels = nil }, at, Facts{}},
		"the startup taint is back": {func(n *nodepatch.Node) { n.Spec.Taints = []nodepatch.Taint{{Key: "node-ready/unverified"}} }, at,
			Facts{}},
		"released from a startup taint": {func(n *nodepatch.Node) { n.Annotations = map[string]string{nodepatch.Annotation: record} }, at,
			Facts{Verified: true, Gated: true}},
		"released from a leftover": {func(n *nodepatch.Node) { n.Annotations = map[string]string{nodepatch.Annotation: leftover} }, at,
			Facts{Verified: true}},
		"with the condition": {func(n *nodepatch.Node) {
			n.Status.Conditions = []nodepatch.Condition{{Type: "Ready", Status: True}, ours}
		}, at,
			Facts{Verified: true, Gated: true, Shown: Shown{False, condition.Silent}}},
		"another condition": {func(n *nodepatch.Node) { n.Status.Conditions = []nodepatch.Condition{{Type: "Ready", Status: True}} }, at,
			Facts{Verified: true}},
		"re-tainted": {func(n *nodepatch.Node) { n.Spec.Taints = []nodepatch.Taint{failed} }, at, Facts{Verified: true, Retainted: true}},
		"cordoned":   {func(n *nodepatch.Node) { n.Spec.Unschedulable = true }, at, Facts{Verified: true, Untouchable: "it is cordoned"}},
	} {
		t.Run(name, func(t *testing.T) {
			node := new(nodepatch.Node)
			node.Labels = map[string]string{"node-ready/verified": "true"}
			test.edit(node)
			test.want.ReadAt = test.at
			assert.Equal(t, test.want, Read(node, test.at, keys, "NodeVerified"))
		})
	}
}

// A round in which a check could not look is no proof of anything, also where it is the one that finds the node re-tainted.
func TestRoundsThatCouldNotLook(t *testing.T) {
	settings := defaults()
	settings.RecoveryThreshold = 1
	m := found(settings, shows(True, "Verified"))
	m.unknown = true
	m.rounds("network", "network", "", "", "")
	assert.Equal(t, True, m.Status)
	m.node = retainted(shows(False, "Silent"))
	m.rounds("", "", "")
	assert.True(t, m.node.Retainted)
	assert.Empty(t, m.did)
	m.unknown = false
	m.rounds("", "")
	assert.False(t, m.node.Retainted)
}

// Nor does it go on with what failed before: rounds fail in a row, and a False is refreshed while they do.
func TestRoundsThatCouldNotLookEndARow(t *testing.T) {
	m := found(defaults(), shows(True, "Verified"))
	m.rounds("network", "network")
	m.unknown = true
	m.rounds("", "")
	m.unknown = false
	m.rounds("network")
	assert.Equal(t, True, m.Status)
	m.rounds("network", "network")
	assert.Len(t, m.did, 1)
	m.unknown, m.failing = true, nil
	m.runFor(time.Hour)
	assert.Len(t, m.did, 1)
}
