drawn(document.getElementById("drawn"), data.pictures, data.scale, data.most);
