replay(document.getElementById("replay"), data.prompts, data.scale);
