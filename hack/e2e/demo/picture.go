package main

import (
	"bytes"
	"fmt"
	"math"
	"strings"

	svg "github.com/ajstarks/svgo/float"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// Layout, in pixels: what each step is, its bar, its time. Each step has a row of its own, so that no text meets another.
const (
	width     = 800.0
	margin    = 24.0
	barsFrom  = 320.0
	barsTo    = 690.0
	rowHeight = 26.0
	barHeight = 12.0
	textDrop  = 4.5 // from the middle of a row to the foot of its text
)

// panel is a time axis with a row for each step below it.
type panel struct {
	steps    []step
	top      float64 // of the first row
	from, to float64 // milliseconds
}

func (p panel) x(ms float64) float64 { return barsFrom + (ms-p.from)/(p.to-p.from)*(barsTo-barsFrom) }

func (p panel) bottom() float64 { return p.top + float64(len(p.steps))*rowHeight }

// draw returns the picture: all steps, and those of the agent enlarged below. The same timeline gives the same bytes.
func draw(t timeline) []byte {
	all := panel{steps: t.Steps, top: 100}
	agents := panel{steps: t.Agent, top: all.bottom() + 72}
	for _, s := range t.Steps {
		all.to = max(all.to, s.End)
		if s.Who == byAgent {
			agents.from, agents.to = s.Start, s.End
		}
	}
	height := agents.bottom() + margin

	var out bytes.Buffer
	canvas := svg.New(&out)
	canvas.Decimals = 1
	canvas.Start(width, height, fmt.Sprintf(`viewBox="0 0 %.0f %.0f"`, width, height), `role="img"`)
	canvas.Title("A new node, from its registration to its first workload")
	canvas.Style("text/css", harness.PictureStyle)
	canvas.Roundrect(0.5, 0.5, width-1, height-1, 6, 6, `class="card"`)
	canvas.Text(margin, 36, "A new node, from its registration to its first workload", `class="title"`)
	canvas.Text(margin, 58, "One run of make demo. Milliseconds since the node registered.", `class="quiet"`)

	left, right, wide := all.x(agents.from), all.x(agents.to), agents.top-32
	canvas.Polygon([]float64{left, right, right, barsTo, barsTo, barsFrom, barsFrom, left},
		[]float64{all.top, all.top, all.bottom(), wide, agents.bottom(), agents.bottom(), wide, all.bottom()}, `class="zoom"`)
	all.draw(canvas)
	canvas.Text(margin, agents.top-12, "The agent's "+format(agents.to-agents.from)+", enlarged", `class="quiet"`)
	agents.draw(canvas)
	canvas.End()
	return out.Bytes()
}

func (p panel) draw(canvas *svg.SVG) {
	for _, tick := range ticks(p.from, p.to) {
		canvas.Line(p.x(tick), p.top-6, p.x(tick), p.bottom(), `class="grid"`)
		canvas.Text(p.x(tick), p.top-12, fmt.Sprintf("%g", tick), `class="quiet middle"`)
	}
	for i, s := range p.steps {
		middle := p.top + (float64(i)+0.5)*rowHeight
		class := fmt.Sprintf("class=%q", s.Who)
		canvas.Text(margin, middle+textDrop, s.What)
		if s.Start == s.End {
			canvas.Circle(p.x(s.Start), middle, barHeight/2, class)
			canvas.Text(p.x(s.End)+12, middle+textDrop, "at "+format(s.End))
			continue
		}
		length := max(p.x(s.End)-p.x(s.Start), 3)
		canvas.Roundrect(p.x(s.Start), middle-barHeight/2, length, barHeight, 1.5, 1.5, class)
		canvas.Text(p.x(s.Start)+length+8, middle+textDrop, format(s.End-s.Start))
	}
}

// ticks are at most six round numbers between from and to.
func ticks(from, to float64) (at []float64) {
	distance := math.Pow(10, math.Floor(math.Log10((to-from)/6)))
	for _, times := range []float64{2, 2.5, 2} { // 1, 2, 5, 10
		if (to-from)/distance > 5 {
			distance *= times
		}
	}
	for tick := math.Ceil(from/distance) * distance; tick <= to; tick += distance {
		at = append(at, tick)
	}
	return at
}

// format gives one decimal below 10 ms.
func format(ms float64) string {
	if ms >= 10 {
		return fmt.Sprintf("%.0f ms", ms)
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", ms), ".0") + " ms"
}
