package recheck

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// What an agent writes, and when: rounds are at 30s, 1m30s, and so on, and take a second.
func TestWhatIsWritten(t *testing.T) {
	for name, test := range map[string]struct {
		node   Facts
		rounds string
		want   []string
	}{
		"no condition yet":        {shows("", ""), "....", []string{"2m31s True Verified"}},
		"True":                    {shows(True, "Verified"), "....", nil},
		"single failures":         {shows(True, "Verified"), "xx.xx.x", nil},
		"fails":                   {shows(True, "Verified"), "xxx", []string{"2m31s False NetworkFailed"}},
		"fails and recovers":      {shows(True, "Verified"), "xxx....", []string{"2m31s False NetworkFailed", "5m31s True Verified"}},
		"its own reason, at once": {shows(False, "Silent"), "x", []string{"31s False NetworkFailed"}},
		"recovers after a restart": {retainted(shows(False, "NetworkFailed")), "....",
			[]string{"2m31s True Verified", "2m31s failed taint removed"}},
		"a leftover":                    {retainted(shows(True, "Verified")), "....", []string{"2m31s failed taint removed"}},
		"a leftover, and a round fails": {retainted(shows(True, "Verified")), "..x..", nil},
		"unknown":                       {shows("Unknown", "NotRechecked"), "....", []string{"2m31s True Verified"}},
		"never gated":                   {Facts{Verified: true}, "...xxx...", nil},
		"never gated, and a leftover":   {retainted(Facts{Verified: true}), "...", []string{"2m31s failed taint removed"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := found(defaults(), test.node)
			for _, outcome := range test.rounds {
				m.rounds(map[rune]string{'x': "network"}[outcome])
			}
			assert.Equal(t, test.want, m.did)
		})
	}
}

// The agent that has released the node writes the condition again if the release could not.
func TestAfterTheRelease(t *testing.T) {
	for name, test := range map[string]struct {
		shown         string
		gated, writes bool
	}{
		"written by the release":  {True, true, false},
		"not written":             {"", true, true},
		"False before, and since": {False, true, true},
		"never gated":             {"", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			s := Released(defaults(), Facts{Verified: true, Gated: test.gated, Shown: Shown{Status: test.shown}}, now)
			assert.Equal(t, True, s.Status)
			action, at := s.Next(now)
			assert.Equal(t, test.writes, action == Write && at.Equal(now))
			assert.Equal(t, test.writes, s.Shows(now).Condition != nil)
		})
	}
}

// What the node shows from before its release, because the condition could not be written, is not the controller's answer to it.
func TestFailedConditionFromBeforeTheRelease(t *testing.T) {
	now := time.Now()
	s := Released(defaults(), shows(False, "Silent"), now)
	s = s.AfterRound(Results{Began: now}, s.facts, now)
	assert.Equal(t, True, s.Status)
	assert.False(t, s.Round(now).Thorough)
}

func TestCondition(t *testing.T) {
	m := found(defaults(), shows("", ""))
	m.rounds("", "")
	m.step()
	want := nodepatch.Condition{Status: True, Reason: "Verified", Message: verdict.AllChecksPass}
	assert.Equal(t, &want, m.Shows(m.now).Condition)
	m.step()
	m.rounds("network", "network")
	m.step()
	want = nodepatch.Condition{Status: False, Reason: "NetworkFailed", Message: "rechecks fail: no route"}
	assert.Equal(t, &want, m.Shows(m.now).Condition)
	m.State = m.AfterRound(Results{Began: m.now, Failed: []string{"peers", "dns"}, Message: strings.Repeat("x", 2000)}, m.read(), m.now)
	condition := m.Shows(m.now).Condition
	assert.Equal(t, "DNSFailed,PeersFailed", condition.Reason, "of the last round")
	assert.Len(t, condition.Message, 1024)
}

// A condition that stays False is refreshed, also while no round ends; one that is True is not.
func TestRefresh(t *testing.T) {
	for interval, want := range map[time.Duration][]string{
		time.Minute: {"2m31s", "7m31s", "12m31s", "17m31s"},
		time.Hour:   {"2h30m1s", "2h35m1s", "2h40m1s", "2h45m1s"},
	} {
		settings := defaults()
		settings.Interval = interval
		m := found(settings, shows(True, "Verified"))
		m.failing = []string{"network"}
		for len(m.did) < len(want) {
			m.step()
		}
		for i := range want {
			want[i] += " False NetworkFailed"
		}
		assert.Equal(t, want, m.did)
		m.rounds("", "", "")
		n := len(m.did)
		assert.Contains(t, m.did[n-1], "True Verified")
		m.failing = nil
		m.runFor(3 * time.Hour)
		assert.Len(t, m.did, n)
	}
}

// A condition that another client removes is written again: True with the next round that proves it, False with its refresh. A node
// that was never gated gets none, and one that a webhook removes at once is written every five minutes.
func TestConditionThatIsRemoved(t *testing.T) {
	for name, test := range map[string]struct {
		node    Facts
		rounds  []string
		removes bool
		want    []string
	}{
		"True":             {shows(True, "Verified"), []string{"", "", "", ""}, false, []string{"4m31s True Verified"}},
		"True, not proven": {shows(True, "Verified"), []string{"", ""}, false, []string{"2m31s True Verified"}},
		"False":            {shows(True, "Verified"), []string{"network", "network", "network"}, false, []string{"2m31s False NetworkFailed", "7m31s False NetworkFailed"}},
		"never gated":      {Facts{Verified: true, Shown: Shown{True, condition.Verified}}, []string{"", "", "", ""}, false, nil},
		"always, by a webhook": {shows(True, "Verified"), []string{"", "", "", ""}, true,
			[]string{"4m31s True Verified", "9m31s True Verified"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := found(defaults(), test.node)
			m.rounds(test.rounds...)
			m.node.Shown, m.removes = Shown{}, test.removes
			m.runFor(8 * time.Minute)
			assert.Equal(t, test.want, m.did)
		})
	}
}

// A client that removes the condition after every round makes the agent write it every five minutes, not in every round.
func TestConditionThatIsRemovedAgainAndAgain(t *testing.T) {
	for status, check := range map[string]string{True: "", False: "network"} {
		m := found(defaults(), shows(status, "NetworkFailed"))
		m.rounds(check, check, check)
		m.did = nil
		for range 12 {
			m.node.Shown = Shown{}
			m.rounds(check)
		}
		assert.Len(t, m.did, map[string]int{True: 3, False: 2}[status], "%s: %s", status, m.did)
	}
}

// A condition that is removed at once does not delay the next try to remove the failed taint.
func TestFailedTaintWhileTheConditionIsRemoved(t *testing.T) {
	m := found(defaults(), retainted(shows(False, "NetworkFailed")))
	m.failing = nil
	for m.Status != True {
		m.step()
	}
	m.node.Shown = Shown{}
	m.State = m.AfterWrite(Written{Condition: true, Err: errRefused}, m.read(), m.now)
	_, at := m.Next(m.now)
	assert.Equal(t, 30*time.Second, at.Sub(m.now))
	m.step()
	assert.Equal(t, []string{"3m1s failed taint removed"}, m.did, "the condition waits")
}

// The controller's answer to a node whose condition was removed, and could not be written again, is not overwritten before the rounds
// have proven the node once more.
func TestControllersAnswerAfterARemoval(t *testing.T) {
	m := found(defaults(), shows(True, "Verified"))
	m.rounds("", "", "", "")
	m.node.Shown, m.refused = Shown{}, apierrors.NewForbidden(schema.GroupResource{}, "", nil)
	m.rounds("")
	m.node.Shown, m.refused = Shown{False, condition.Silent}, nil
	m.rounds("", "")
	assert.Empty(t, m.did)
	m.rounds("")
	assert.Equal(t, []string{"7m31s True Verified"}, m.did)
}

// A False whose rounds pass again is not refreshed: it goes stale, and the controller does not re-taint the node.
func TestNoRefreshWhilePassing(t *testing.T) {
	settings := defaults()
	settings.RecoveryThreshold = 100
	m := found(settings, shows(True, "Verified"))
	m.rounds("network", "network", "network")
	wrote := len(m.did)
	m.failing = nil
	m.rounds("")
	m.runFor(time.Hour)
	assert.Len(t, m.did, wrote)
	assert.Equal(t, False, m.Status)
	m.rounds("network")
	assert.Len(t, m.did, wrote+1, "it fails")
}

// Nothing that was counted before the controller's answer removes its failed taint: neither rounds, nor a read between them.
func TestControllersAnswer(t *testing.T) {
	hourly := defaults()
	hourly.Interval = time.Hour
	for name, test := range map[string]struct {
		settings Settings
		before   func(*model)
		read     func(*model)
	}{
		"between rounds": {hourly, func(m *model) { m.rounds("", "", "", "") }, func(m *model) { m.step() }},
		"in a round":     {defaults(), func(m *model) { m.rounds("", "", "", "") }, func(m *model) { m.rounds("") }},
		"while the condition is refused": {defaults(), func(m *model) {
			m.rounds("network", "network", "network")
			m.refused = errRefused
			m.rounds("", "", "")
		}, func(m *model) { m.rounds("") }},
	} {
		t.Run(name, func(t *testing.T) {
			m := found(test.settings, shows(True, "Verified"))
			test.before(m)
			assert.Equal(t, True, m.Status)
			m.node = retainted(shows(False, "Silent"))
			m.did = nil
			test.read(m)
			assert.Empty(t, m.Status)
			assert.False(t, m.Shows(m.now).IsProven)
			assert.True(t, m.next().Thorough, "with large packets")
			m.rounds("network", "", "")
			assert.True(t, m.node.Retainted)
			m.rounds("")
			assert.False(t, m.node.Retainted)
			assert.Equal(t, True, m.Status)
			for _, text := range m.did {
				assert.NotContains(t, text, "False")
			}
		})
	}
}

// Rounds prove again that the node passes only if the controller has answered what the agent has shown.
func TestWhatIsNoAnswerOfTheController(t *testing.T) {
	m := found(defaults(), shows(False, "NetworkFailed"))
	m.refused = errRefused
	m.rounds("", "", "")
	assert.Equal(t, True, m.Status)
	m.look()
	assert.Equal(t, True, m.Status, "the node shows what was written before the verdict")
	m.rounds("")
	assert.Equal(t, True, m.Status)
	m.node = retainted(m.node)
	m.rounds("")
	assert.Empty(t, m.Status, "the controller has re-tainted it since")
}

// The True is refused for long, and the controller re-taints the node in the meantime: a write between two rounds does not remove that
// taint. New rounds do, although the True is still refused and the controller's False is still there.
func TestRetaintedWhileTheTrueIsRefused(t *testing.T) {
	settings := defaults()
	settings.Interval = 6 * time.Minute
	m := found(settings, shows(False, "NetworkFailed"))
	m.refused = errRefused
	m.rounds("", "", "")
	m.runFor(2 * time.Minute)
	m.node = retainted(shows(False, "Silent"))
	m.runFor(2 * time.Minute)
	assert.True(t, m.node.Retainted, "no round has passed since")
	m.rounds("", "")
	assert.True(t, m.node.Retainted)
	m.rounds("")
	assert.False(t, m.node.Retainted)
	m.runFor(4 * time.Minute)
	assert.Equal(t, True, m.Status)
	assert.Len(t, m.did, 1)
}

// What becomes of a write decides when the next one is.
func TestWrote(t *testing.T) {
	final := apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "node1", errRefused)
	none := time.Duration(-1)
	for name, test := range map[string]struct {
		status  string
		failing string
		err     error
		next    time.Duration
	}{
		"True":           {status: True, next: none},
		"True, failed":   {status: True, err: errRefused, next: 30 * time.Second},
		"True, refused":  {status: True, err: final, next: 5 * time.Minute},
		"False":          {status: False, failing: "network", next: 5 * time.Minute},
		"False, failed":  {status: False, failing: "network", err: errRefused, next: none},
		"False, refused": {status: False, failing: "network", err: final, next: 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			settings := defaults()
			settings.Interval = 4 * time.Minute // a round does not hide what is later
			settings.FailureThreshold, settings.RecoveryThreshold = 1, 1
			m := found(settings, shows(map[string]string{True: False, False: True}[test.status], "NetworkFailed"))
			if test.failing != "" {
				m.failing = []string{test.failing}
			}
			m.step()
			assert.Equal(t, test.status, m.Status)
			action, at := m.Next(m.now)
			assert.Equal(t, Write, action)
			assert.Equal(t, m.now, at)
			m.refused = test.err
			m.step()
			got := none
			if !m.writeAt.IsZero() {
				got = m.writeAt.Sub(m.now)
			}
			assert.Equal(t, test.next, got)
		})
	}
}

// A False that could not be written is not written once rounds pass: the API server may be back, and all well.
func TestFalseThatCannotBeWritten(t *testing.T) {
	m := found(defaults(), shows(True, "Verified"))
	m.refused = errRefused
	m.rounds("api", "api", "api")
	assert.Equal(t, False, m.Status)
	m.refused = nil
	m.rounds("", "", "", "")
	assert.Equal(t, True, m.Status)
	assert.Equal(t, []string{fmt.Sprintf("%s True Verified", 5*time.Minute+31*time.Second)}, m.did)

	m = found(defaults(), shows(True, "Verified"))
	m.refused = errRefused
	m.rounds("api", "api", "api")
	m.refused = nil
	m.rounds("api")
	assert.Equal(t, []string{"3m31s False APIFailed"}, m.did, "with the next round that fails")
}

// Nothing is written to a node that somebody drains or takes away, and a write that was due waits for rounds on one that stays.
func TestNothingIsWrittenToAnUntouchableNode(t *testing.T) {
	settings := defaults()
	settings.Interval = 6 * time.Minute
	m := found(settings, shows(False, "NetworkFailed"))
	m.refused = errRefused
	m.rounds("", "", "")
	m.refused = nil
	m.node.Untouchable = "it is cordoned"
	m.look()
	action, _ := m.Next(m.now)
	assert.Equal(t, Write, action)
	m.step()
	action, _ = m.Next(m.now)
	assert.NotEqual(t, Write, action)
	m.rounds("", "", "")
	assert.Empty(t, m.did)
	m.node.Untouchable = ""
	m.rounds("", "")
	assert.Empty(t, m.did)
	m.rounds("")
	assert.Equal(t, []string{"51m1s True Verified"}, m.did)
}

// A True that is still to be written is not for a Node that was created again: nobody has verified that one.
func TestNothingIsShownOnAnUnverifiedNode(t *testing.T) {
	m := found(defaults(), shows("", ""))
	m.refused = errRefused
	m.rounds("", "", "")
	assert.NotNil(t, m.Shows(m.now).Condition)
	m.node.Verified = false
	m.look()
	assert.Empty(t, m.Shows(m.now))
}
