import{a,b}from"../../chunk-XY7U6Y75.js";import"../../chunk-INPMY4FL.js";import"../../chunk-WZIZIJ7E.js";export{b as columnsRead,a as working};
