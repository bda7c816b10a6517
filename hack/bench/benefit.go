package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	benefitNode = "benefit1" // the name servers run on another node
	benefitRuns = 3          // of each delay, with the gate and without it
)

// delay is what the network of a new node still lacks when the pods of a service are created on it.
type delay struct {
	Fault   string `json:"fault"`
	Seconds int    `json:"seconds"` // after the pods were created, the network works; 0: from the start
}

func (d delay) String() string {
	if d.Seconds == 0 {
		return "nothing late"
	}
	return fmt.Sprintf("%s %d s late", d.Fault, d.Seconds)
}

func delays() []delay {
	return []delay{{proxy, 0}, {proxy, 3}, {proxy, 8}, {proxy, 15}, {proxy, 30}, {dns, 8}, {routes, 8}}
}

// service is how the pods started in each run: how often kubelet restarted them, and seconds from the working network to all ready.
type service struct {
	Restarts []int     `json:"restarts"`
	Ready    []float64 `json:"readySeconds"`
}

// benefit is the same service with the gate and without it.
type benefit struct {
	delay
	Without service `json:"withoutGate"`
	With    service `json:"withGate"`
}

func (b benefit) ratio() float64 { return median(b.With.Ready) / median(b.Without.Ready) }

// ratioBudget limits the time with the gate, compared with the time without it; 0: no limit.
func (d delay) ratioBudget() float64 {
	switch {
	case d.Fault == proxy && d.Seconds == 0:
		return 1.4
	case d.Fault == proxy && (d.Seconds == 8 || d.Seconds == 15):
		return 0.5
	default:
		return 0
	}
}

// benefit measures what the gate is for: pods that need DNS at their start, on a new node whose network comes late.
func (b *bench) benefit(ctx context.Context) (err error) {
	defer func() {
		ctx := context.WithoutCancel(ctx)
		err = errors.Join(err, b.DeleteNodes(ctx, benefitNode), b.Undeploy(ctx))
	}()
	if err := b.Deploy(ctx); err != nil {
		return err
	}
	if err := b.AddNodes(ctx, benefitNode); err != nil {
		return err
	}
	var all []benefit
	for _, d := range delays() {
		b.step("benefit: %s, %d times with the gate and without it in turn", d, benefitRuns)
		measured := benefit{delay: d}
		for range benefitRuns {
			for _, gated := range []bool{false, true} {
				to := &measured.Without
				if gated {
					to = &measured.With
				}
				if err := b.startService(ctx, d, gated, to); err != nil {
					return err
				}
			}
		}
		all = append(all, measured)
		b.reportBenefit(measured)
	}
	b.Line("\n%s", benefitTable(all))
	return b.drawBenefit(all)
}

// startService makes the fault, creates the pods, ends the fault when the delay is over, and notes when all pods are ready.
func (b *bench) startService(ctx context.Context, d delay, gated bool, to *service) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := b.settled(ctx, agentVerifier(), benefitNode); err != nil {
		return err
	}
	end := func(context.Context) (time.Time, error) { return time.Now(), nil }
	if d.Seconds > 0 {
		if end, err = b.breakNode(ctx, benefitNode, d.Fault); err != nil {
			return err
		}
	}
	if gated {
		if err := b.Gate(ctx, benefitNode); err != nil {
			return err
		}
	}
	created := time.Now()
	remove, err := b.StartService(ctx, benefitNode)
	defer func() { err = errors.Join(err, remove(context.WithoutCancel(ctx))) }()
	if err != nil {
		return err
	}
	works := created
	if d.Seconds > 0 {
		sleep(ctx, time.Until(created.Add(time.Duration(d.Seconds)*time.Second)))
		if works, err = end(ctx); err != nil {
			return err
		}
	}
	state, at, err := b.AwaitService(ctx, benefitNode)
	to.Restarts, to.Ready = append(to.Restarts, state.Restarts), append(to.Ready, at.Sub(works).Seconds())
	return err
}

func (b *bench) reportBenefit(m benefit) {
	b.figure(m.String()+": without the gate", "%s", m.Without)
	b.figure(m.String()+": with the gate", "%s", m.With)
	b.budget(m.String()+": restarts with the gate", float64(slices.Max(m.With.Restarts)), 0, "%.0f")
	if limit := m.ratioBudget(); limit > 0 {
		b.budget(m.String()+": time with the gate compared with the time without", m.ratio(), limit, "%.2f times")
	}
}

func (s service) String() string {
	return fmt.Sprintf("%.0f restarts, ready after %.1f s (worst %.1f s)", s.restarts(), median(s.Ready), slices.Max(s.Ready))
}

func (s service) restarts() float64 {
	var all []float64
	for _, n := range s.Restarts {
		all = append(all, float64(n))
	}
	return median(all)
}

// benefitTable is the table of README.md.
func benefitTable(all []benefit) string {
	var text strings.Builder
	text.WriteString("| when the pods are created | without the gate: restarts | all ready after: median (worst) " +
		"| with the gate: restarts | all ready after: median (worst) |\n|---|--:|--:|--:|--:|\n")
	for _, m := range all {
		fmt.Fprintf(&text, "| %s |", m)
		for _, s := range []service{m.Without, m.With} {
			fmt.Fprintf(&text, " %.0f | %.1f s (%.1f s) |", s.restarts(), median(s.Ready), slices.Max(s.Ready))
		}
		text.WriteString("\n")
	}
	return text.String()
}
