package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/checks"
)

// pod is what outlives an agent in a simulation: the emptyDir of its pod, and the network.
type pod struct {
	t       *testing.T
	api     *fakeAPI
	silent  atomic.Bool // the API server does not answer
	answers atomic.Bool // the network check's target answers all the same
	file    string
	began   time.Time
	renewed []time.Duration // when the pause process had SIGTERM, since began
	sigterm func(*process) error
}

// newPod returns a pod in which nothing answers.
func newPod(t *testing.T, api *fakeAPI) *pod {
	p := &pod{t: t, api: api, file: filepath.Join(t.TempDir(), "renewal.json"), began: time.Now()}
	p.sigterm = func(process *process) error { process.terminate(); return nil }
	p.silent.Store(true)
	api.intercept(func(_ string, _ int, _ http.ResponseWriter, r *http.Request) bool {
		if p.silent.Load() {
			<-r.Context().Done()
		}
		return p.silent.Load()
	})
	return p
}

func (p *pod) network(ctx context.Context) (checks.Report, error) {
	if p.silent.Load() && !p.answers.Load() {
		<-ctx.Done()
		return checks.Report{}, ctx.Err()
	}
	answer(ctx)
	return passing(ctx)
}

// start starts an agent, as kubelet does. It ends with the sandbox.
func (p *pod) start(args ...string) *process {
	process, run := prepare(p.t, p.api, p.network, map[string]string{"RENEW_SANDBOX": "true"}, args...)
	process.agent.renewal = newRenewal(process.agent.deps, p.file, func() error {
		p.renewed = append(p.renewed, time.Since(p.began))
		return p.sigterm(process)
	})
	go run()
	return process
}

// record is what the emptyDir keeps.
func (p *pod) record() *renewal {
	text, err := os.ReadFile(p.file)
	require.NoError(p.t, err)
	record := new(renewal)
	require.NoError(p.t, json.Unmarshal(text, record))
	return record
}

// longestRound is more than a round and the pause behind it.
const longestRound = 100 * time.Second

// The sandbox is renewed after INITIAL_TIMEOUT, then after 10, 20, 40, 60, 60 minutes. Each agent reports the timeout soon, and the
// release tells how long all of them took.
func TestRenewal(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		pod := newPod(t, api)
		last := time.Duration(0)
		for i, pause := range []time.Duration{initialTimeout, 10 * time.Minute, 20 * time.Minute, 40 * time.Minute, time.Hour, time.Hour} {
			p := pod.start()
			after(time.Minute)
			if i > 0 {
				p.entry("the sandbox was renewed")
				p.entry("initial timeout exceeded")
			}
			p.wait()
			p.entry("nothing answers: ending the sandbox, kubelet makes a new one")
			require.Len(t, pod.renewed, i+1)
			assert.InDelta(t, pause+longestRound/2, pod.renewed[i]-last, float64(longestRound/2), "%d", i)
			last = pod.renewed[i]
		}
		pod.silent.Store(false)
		p := pod.start()
		synctest.Wait()
		assert.Equal(t, untainted, api.taints())
		took, err := time.ParseDuration(p.entry("node verified")["took"].(string))
		require.NoError(t, err)
		assert.InDelta(t, time.Since(pod.began), took, float64(5*time.Second))
		assert.Equal(t, []string{"NodeVerified"}, api.reasons(), "no timeout of a node that is verified at once")
		p.stop()
		p.wait()
		assert.Len(t, pod.renewed, 6)
	})
}

// Nothing is renewed where anything answers, or where nobody has asked for it.
func TestNoRenewal(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		do   func(*pod, *process)
	}{
		"before INITIAL_TIMEOUT":        {args: []string{"--initial-timeout=4h"}},
		"switched off":                  {args: []string{"--renew-sandbox=false"}},
		"with --once":                   {args: []string{"--once"}},
		"only the API server is silent": {do: func(p *pod, _ *process) { p.answers.Store(true) }},
		"something has answered once": {do: func(p *pod, _ *process) {
			p.api.edit(addTaint(cilium))
			p.silent.Store(false)
			after(time.Minute)
			p.api.edit(removeTaint(cilium.Key))
			p.silent.Store(true)
		}},
		"SIGTERM in the round before it": {do: func(_ *pod, process *process) {
			process.logged("initial timeout exceeded")
			process.terminate()
		}},
		"SIGTERM during the report of that round": {do: func(p *pod, process *process) {
			before := p.api.intercepted()
			p.api.intercept(func(request string, n int, w http.ResponseWriter, r *http.Request) bool {
				log, _ := process.stderr.read()
				_, sinceTimeout, timedOut := strings.Cut(log, "initial timeout exceeded")
				if request == postEvent && timedOut && strings.Contains(sinceTimeout, "node not verified") {
					process.terminate()
				}
				return before(request, n, w, r)
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				pod := newPod(t, api)
				p := pod.start(append(test.args, "--wait-for-taints=node.cilium.io/")...)
				if test.do != nil {
					test.do(pod, p)
				}
				after(time.Hour)
				p.stop()
				p.wait()
				assert.Empty(t, pod.renewed)
				assert.NoFileExists(t, pod.file)
			})
		})
	}
}

// A renewal that is refused is said once, in the log and in a metric, and not tried again. The checks go on.
func TestRefusedRenewal(t *testing.T) {
	for name, test := range map[string]struct {
		edit func(*pod)
		want string
	}{
		"pause has another user": {func(p *pod) { p.sigterm = func(*process) error { return syscall.EPERM } }, "operation not permitted"},
		"pause ignores SIGTERM":  {func(p *pod) { p.sigterm = func(*process) error { return nil } }, "the pause process still runs after SIGTERM"},
		"no emptyDir":            {func(p *pod) { p.file = "/proc/none/renewal.json" }, "no such file or directory"},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				pod := newPod(t, api)
				test.edit(pod)
				p := pod.start()
				after(time.Hour)
				const message = "the agent cannot renew its sandbox (RENEW_SANDBOX), and does not retry"
				assert.Contains(t, p.entry(message)["error"], test.want)
				log, _ := p.stderr.read()
				assert.Equal(t, 1, strings.Count(log, message))
				assert.LessOrEqual(t, len(pod.renewed), 1)
				assert.NoFileExists(t, pod.file, "the next agent is in the same sandbox")
				answer := httptest.NewRecorder()
				p.agent.metrics.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
				assert.Contains(t, answer.Body.String(), `node_check_failures_total{check="sandbox",node="node1"} 1`)
				pod.silent.Store(false)
				after(longestRound)
				assert.Equal(t, untainted, api.taints())
				p.stop()
				p.wait()
			})
		})
	}
}

// A record that is not of this silence does not count: INITIAL_TIMEOUT begins, and so do the pauses.
func TestRecordThatDoesNotCount(t *testing.T) {
	boot := bootID(t)
	for name, test := range map[string]struct{ boot, start, next string }{ // since now
		"another boot":            {"another", "-1h", "10m"},
		"long ago":                {boot, "-3h", "-61m"},
		"the clock was set back":  {boot, "1s", "10m"},
		"a next one in two hours": {boot, "-1h", "2h"},
		"nothing":                 {},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				pod := newPod(t, api)
				text := "}"
				if test.boot != "" {
					text = recordOf(t, test.boot, test.start, test.next, time.Hour)
				}
				require.NoError(t, os.WriteFile(pod.file, []byte(text), 0o600))
				p := pod.start()
				synctest.Wait()
				p.entry("the agent ignores the record of the last renewal")
				p.wait()
				require.Len(t, pod.renewed, 1)
				assert.InDelta(t, initialTimeout+longestRound/2, pod.renewed[0], float64(longestRound/2))
				record := pod.record()
				assert.Equal(t, firstPause, record.Pause)
				assert.Equal(t, boot, record.BootID)
				assert.WithinDuration(t, pod.began, record.Start, 5*time.Second)
			})
		})
	}
}

// A renewal that the record has for later waits, also one in another pause.
func TestRecordThatCounts(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		pod := newPod(t, api)
		require.NoError(t, os.WriteFile(pod.file, []byte(recordOf(t, bootID(t), "-24h", "40m", -time.Hour)), 0o600))
		pod.start().wait()
		assert.InDelta(t, 40*time.Minute+longestRound/2, pod.renewed[0], float64(longestRound/2))
		assert.Equal(t, firstPause, pod.record().Pause, "also behind a pause that no agent wrote")
	})
}

// A full disk, or a pod that is killed while it writes, leaves the record as it was.
func TestRecordIsReplacedAtOnce(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		pod := newPod(t, api)
		require.NoError(t, os.Mkdir(pod.file+".new", 0o700)) // it cannot be written
		before := recordOf(t, bootID(t), "-10m", "1m", firstPause)
		require.NoError(t, os.WriteFile(pod.file, []byte(before), 0o600))
		p := pod.start()
		after(time.Hour)
		assert.Empty(t, pod.renewed, "the next agent would not know of it")
		p.entry("the agent cannot renew its sandbox (RENEW_SANDBOX), and does not retry")
		text, err := os.ReadFile(pod.file)
		require.NoError(t, err)
		assert.Equal(t, before, string(text))
		p.stop()
		p.wait()
	})
}

// The agent of a released node renews its sandbox once the node has failed its rechecks, if nothing has answered since the first of
// them. The node stays released meanwhile, and the next agent goes on.
func TestRenewalWithRechecks(t *testing.T) {
	for name, test := range map[string]struct {
		threshold int
		do        func(*pod)
		renewed   int
	}{
		"nothing answers":                {3, func(*pod) { after(initialTimeout + 4*time.Minute) }, 1},
		"for less than INITIAL_TIMEOUT":  {3, func(*pod) { after(initialTimeout) }, 0},
		"the node has not failed so far": {15, func(*pod) { after(initialTimeout + 4*time.Minute) }, 0},
		"only the API server is silent":  {3, func(p *pod) { p.answers.Store(true); after(10 * time.Minute) }, 0},
	} {
		rechecks := []string{"--recheck-interval=1m", fmt.Sprint("--failure-threshold=", test.threshold)}
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				pod := newPod(t, api)
				pod.silent.Store(false)
				api.edit(setReleased)
				p := pod.start(rechecks...)
				after(10 * time.Minute)
				pod.silent.Store(true)
				test.do(pod)
				assert.Len(t, pod.renewed, test.renewed)
				pod.silent.Store(false)
				if test.renewed > 0 {
					p.wait()
					p.entry("node failed its rechecks")
					p = pod.start(rechecks...)
					after(5 * time.Minute)
					p.entry("node is already verified")
				}
				assert.Equal(t, untainted, api.taints())
				p.stop()
				p.wait()
			})
		})
	}
}

// What renewed a sandbox once says nothing of a later silence: the record of it goes.
func TestRecordEndsWithTheSilence(t *testing.T) {
	for name, test := range map[string]struct {
		args  []string
		setUp func(*fakeAPI)
	}{
		"released":  {nil, func(*fakeAPI) {}},
		"recovered": {[]string{"--recheck-interval=1m"}, func(api *fakeAPI) { api.edit(setReleased) }},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				test.setUp(api)
				pod := newPod(t, api)
				if test.args != nil { // the silence begins later
					pod.silent.Store(false)
					time.AfterFunc(10*time.Minute, func() { pod.silent.Store(true) })
				}
				pod.start(test.args...).wait()
				require.Len(t, pod.renewed, 1)
				assert.FileExists(t, pod.file)
				pod.silent.Store(false)
				p := pod.start(test.args...)
				after(6 * time.Minute)
				assert.NoFileExists(t, pod.file)
				p.stop()
				p.wait()
			})
		})
	}
}

// Only the pause process gets the signal: here PID 1 is another one.
func TestPID1IsAnother(t *testing.T) {
	name, err := os.ReadFile("/proc/1/comm")
	require.NoError(t, err)
	if string(name) == "pause\n" {
		t.Skip("the tests run in a pod that shares its PID namespace")
	}
	assert.ErrorContains(t, endSandbox(), "not the pause process")
}

func bootID(t *testing.T) string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	require.NoError(t, err)
	return string(text)
}

// recordOf is what an agent keeps; start and next are durations from now.
func recordOf(t *testing.T, boot, start, next string, pause time.Duration) string {
	at := func(text string) time.Time {
		d, err := time.ParseDuration(text)
		require.NoError(t, err)
		return time.Now().Add(d)
	}
	text, err := json.Marshal(&renewal{BootID: boot, Start: at(start), Next: at(next), Pause: pause})
	require.NoError(t, err)
	return string(text)
}

// What a connection says: only one that is accepted or refused is an answer.
func TestListen(t *testing.T) {
	t.Parallel()
	open := listen(t).String()
	for name, test := range map[string]struct {
		network, address string
		want             bool
	}{
		"accepted":                          {"tcp", open, true},
		"refused":                           {"tcp", "127.0.0.1:" + closedPort(t), true},
		"no route":                          {"tcp", "224.0.0.1:443", false},
		"a socket, and nothing is sent yet": {"udp", open, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := new(renewal)
			conn, err := new(net.Dialer).DialContext(r.listen(t.Context()), test.network, test.address)
			if err == nil {
				require.NoError(t, conn.Close())
			}
			assert.Equal(t, test.want, r.answered.Load())
		})
	}
}

// A verification after rechecks, or after a hold, begins by itself.
func TestStartOfTheSecondVerification(t *testing.T) {
	for _, interval := range []string{"0", "1m"} {
		simulated(t, func(t *testing.T, api *fakeAPI) {
			pod := newPod(t, api)
			pod.silent.Store(false)
			p := pod.start("--recheck-interval=" + interval)
			after(10*time.Minute + 30*time.Second)
			api.edit(func(node *corev1.Node) { delete(node.Labels, "node-ready/verified") })
			api.addStartupTaint()
			after(2 * time.Minute)
			assert.Equal(t, untainted, api.taints())
			for _, entry := range p.entries() {
				if took, ok := entry["took"].(string); ok && entry["msg"] == "node verified" {
					d, err := time.ParseDuration(took)
					require.NoError(t, err)
					assert.Less(t, d, time.Second)
				}
			}
			p.stop()
			p.wait()
		})
	}
}
