/* Search in pages that are opened from the disk. Browsers start no Worker for file: addresses; there the search's program runs
   in a hidden frame instead. The generator would load such a script from another host. */
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(script) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      const setUp = "postMessage = data => parent.postMessage({ fromWorker: data }, '*');" +
        "importScripts = (...urls) => urls.reduce((done, url) => done.then(() => new Promise(next => {" +
        "const script = document.createElement('script'); script.src = url; script.onload = next;" +
        "document.head.append(script) })), Promise.resolve())"
      this.frame.srcdoc = `<script>${setUp}<\/script><script src="${new URL(script, location.href)}"><\/script>`
      this.frame.addEventListener("load", () => {
        const waiting = this.waiting
        this.waiting = null
        waiting.forEach(data => this.postMessage(data))
      })
      addEventListener("message", event => {
        if (event.source === this.frame.contentWindow)
          this.dispatchEvent(new MessageEvent("message", { data: event.data.fromWorker }))
      })
      document.body.append(this.frame)
    }

    postMessage(data) {
      if (this.waiting)
        this.waiting.push(data)
      else
        this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })) // its postMessage leads here
    }
  }
