package main

import (
	"encoding/json"
	"encoding/xml"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

func committed(t *testing.T) (times timeline) {
	text, err := os.ReadFile("timeline.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &times))
	return times
}

// The committed picture is drawn from the committed times.
func TestPictureIsCurrent(t *testing.T) {
	picture, err := os.ReadFile("timeline.svg")
	require.NoError(t, err)
	require.Equal(t, string(picture), string(draw(committed(t))),
		"hack/e2e/demo/timeline.svg is stale: make demo writes both files into .cluster, copy them")
}

// No text overlaps another or leaves the picture, whatever the times are, in the widest of the usual fonts.
func TestTextsDoNotOverlap(t *testing.T) {
	slow := committed(t)
	for _, steps := range [][]step{slow.Steps, slow.Agent} {
		for i := range steps {
			steps[i].Start, steps[i].End = 987*steps[i].Start, 987*steps[i].End+1
		}
	}
	for name, times := range map[string]timeline{"the committed times": committed(t), "half an hour": slow} {
		t.Run(name, func(t *testing.T) {
			texts := textsOf(t, draw(times))
			require.Greater(t, len(texts), 2*len(times.Steps)+2*len(times.Agent))
			for i, a := range texts {
				require.True(t, a.left >= 0 && a.right <= width, a)
				for _, b := range texts[:i] {
					apart := a.right < b.left || b.right < a.left || a.foot-a.size > b.foot || b.foot-b.size > a.foot
					require.True(t, apart, "%+v, %+v", a, b)
				}
			}
		})
	}
}

type text struct {
	text                    string
	left, right, foot, size float64
}

func textsOf(t *testing.T, picture []byte) (found []text) {
	var parsed struct {
		Texts []struct {
			X     float64 `xml:"x,attr"`
			Y     float64 `xml:"y,attr"`
			Class string  `xml:"class,attr"`
			Text  string  `xml:",chardata"`
		} `xml:"text"`
	}
	require.NoError(t, xml.Unmarshal(picture, &parsed))
	for _, it := range parsed.Texts {
		size := 13.0
		if it.Class == "title" {
			size = 17
		}
		length := 0.6 * size * float64(len(it.Text)) // in DejaVu Sans it is less
		left := it.X
		if strings.Contains(it.Class, "middle") {
			left -= length / 2
		}
		found = append(found, text{it.Text, left, left + length, it.Y, size})
	}
	return found
}

// The steps come from the audit log and the agent's log, in milliseconds after the registration.
func TestTimeline(t *testing.T) {
	began := time.Date(2026, 11, 22, 4, 0, 0, 0, time.UTC)
	at := func(ms float64) time.Time { return began.Add(time.Duration(ms * float64(time.Millisecond))) }
	request := func(ms float64, user, verb, resource, name string) harness.Request {
		r := harness.Request{Verb: verb, Received: at(ms - 1), Answered: at(ms)}
		r.User.Username, r.ObjectRef.Name = user, name
		r.ObjectRef.Resource, r.ObjectRef.Subresource, _ = strings.Cut(resource, "/")
		return r
	}
	event := func(ms float64, reason, name string) harness.Request {
		r := request(ms, kubelet, "create", "events", name+".1")
		r.Body = []byte(`{"kind": "Event", "reason": "` + reason + `", "involvedObject": {"name": "` + name + `"}}`)
		return r
	}
	all := history{requests: []harness.Request{
		request(10, kubelet, "create", "nodes", ""),
		request(15, daemonSets, "create", "pods", ""),
		event(31, "NodeReady", node),
		request(104, harness.User, "get", "nodes", node),
		event(106, "Started", "agent-1"), // late: the agent is at work
		request(120, harness.User, "patch", "nodes", node),
		request(125, kubeScheduler, "create", "pods/binding", "workload"),
		event(311, "Started", "workload"),
	}}
	seen := verification{pod: "agent-1", log: []harness.LogLine{
		{Check: "dns", Took: "2ms", Error: "timeout", Time: at(107)},
		{Check: "dns", Took: "1ms", Time: at(110)},
		{Check: "api", Took: "4ms", Time: at(110)},
		{Check: "network", Took: "500µs", Time: at(112.5)}, // late: service has begun
		{Check: "service", Took: "3ms", Time: at(115)},
	}}
	times, err := all.timeline(seen)
	require.NoError(t, err)
	require.Equal(t, []step{
		{"node registers with the startup taint", byCluster, 0, 0},
		{"agent's pod is created", byCluster, 5, 5},
		{"node is Ready", byCluster, 20, 20},
		{"kubelet starts the agent", byCluster, 5, 90},
		{"agent checks and releases the node", byAgent, 90, 110},
		{"workload waits", byWorkload, 0, 115},
		{"kubelet starts the workload", byCluster, 115, 300},
	}, times.Steps)
	require.Equal(t, []step{
		{"api: reads its Node", byAgent, 90, 94},
		{"dns: resolves names", byAgent, 95, 100},
		{"network: connects to a ClusterIP", byAgent, 101.5, 102},
		{"service: reaches the DNS pods", byAgent, 102, 105},
		{"one patch: taint off, label on", byAgent, 109, 110},
	}, times.Agent)

	all.requests = all.requests[:5]
	_, err = all.timeline(verification{pod: "agent-1", log: seen.log[:4]})
	require.ErrorContains(t, err, `patch nodes node2`)
	require.ErrorContains(t, err, `the service check`)
	require.ErrorContains(t, err, `Event Started of workload`)
}
