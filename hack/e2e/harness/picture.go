package harness

// PictureStyle is the style sheet of every picture. It has a background of its own, because GitHub's theme and that of the browser, which decides here, may differ.
const PictureStyle = `text { font: 13px -apple-system, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-size: 17px; font-weight: 600 }
.quiet { font-size: 12px; fill: #59636e }
.middle { text-anchor: middle }
.card { fill: #ffffff; stroke: #d1d9e0 }
.grid { stroke: #1f2328; stroke-opacity: 0.12 }
.cluster { fill: #0969da }
.agent { fill: #1a7f37 }
.workload { fill: #d4a72c }
.bad { fill: #cf222e }
.zoom { fill: #1a7f37; fill-opacity: 0.15 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc }
.quiet { fill: #9198a1 }
.card { fill: #151b23; stroke: #3d444d }
.grid { stroke: #f0f6fc }
.cluster { fill: #4493f8 }
.agent { fill: #3fb950 }
.workload { fill: #d29922 }
.bad { fill: #f85149 }
.zoom { fill: #3fb950; fill-opacity: 0.2 }
}`
